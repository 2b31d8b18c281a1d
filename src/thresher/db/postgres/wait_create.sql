-- One row per shard of a pipeline: the topics and rows that wait, and for how many seconds they did when the row was
-- written. A role other than the table's owner sees and changes only the rows that a policy gives it.
CREATE TABLE IF NOT EXISTS {table} (
  name          TEXT NOT NULL,
  shard         INTEGER NOT NULL,
  topics        TEXT[] NOT NULL,
  topic_seconds DOUBLE PRECISION[] NOT NULL,
  ids           BIGINT[] NOT NULL,
  create_times  BIGINT[] NOT NULL,
  row_seconds   DOUBLE PRECISION[] NOT NULL,
  written       TIMESTAMP WITH TIME ZONE NOT NULL,
  PRIMARY KEY (name, shard)
);
DO $thresher$
BEGIN
  -- Not again: it waits for every session that uses the table, and others wait behind it.
  IF NOT (SELECT c.relrowsecurity FROM pg_catalog.pg_class c WHERE c.oid = $name${table}$name$::pg_catalog.regclass) THEN
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
  END IF;
END
$thresher$;
