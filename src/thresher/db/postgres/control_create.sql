-- One row per relay: the term of its leader, and the layout of its shards. An outbox has one row: of two relays of
-- different names that start at once, one is refused. A role other than the table's owner sees and changes only the rows
-- that a policy gives it, because a row holds the secret under which progress is sealed.
CREATE TABLE IF NOT EXISTS {table} (
  name              TEXT PRIMARY KEY,
  outbox            TEXT NOT NULL,
  outbox_id         UUID NOT NULL,
  system_id         TEXT NOT NULL,
  term              UUID NOT NULL,
  mode              TEXT NOT NULL,
  shards            INTEGER NOT NULL,
  progress_topic_id TEXT,
  term_time         TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  secret            UUID NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
  settled_on        TEXT
);
-- Tables of earlier versions lack it. In those that have it as a constraint, it has this name.
CREATE UNIQUE INDEX IF NOT EXISTS thresher_relay_outbox_key ON {table} (outbox);
