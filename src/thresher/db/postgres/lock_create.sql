-- One row per lock that pipelines of this schema share. A lock for one transaction is the lock of its row. A lock for
-- longer names the session that holds it, and ends with that session. A role other than the table's owner takes only
-- those that a policy gives it.
CREATE TABLE IF NOT EXISTS {table} (
  name    TEXT PRIMARY KEY,
  pid     INTEGER,
  started TIMESTAMP WITH TIME ZONE,
  role    TEXT
);
