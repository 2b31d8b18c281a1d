-- One row per relay: its leader, and the end of the lease by this database's clock. A role other than the table's owner
-- sees and changes only the row that a policy gives it.
CREATE TABLE IF NOT EXISTS {table} (
  name   TEXT PRIMARY KEY,
  holder UUID NOT NULL,
  token  BIGINT NOT NULL,
  until  TIMESTAMP WITH TIME ZONE NOT NULL,
  -- The length of the lease: the holder renews it within this time.
  span   INTERVAL NOT NULL
);
DO $thresher$
BEGIN
  -- Not again: it waits for every session that uses the table, and others wait behind it.
  IF NOT (SELECT c.relrowsecurity FROM pg_catalog.pg_class c WHERE c.oid = $name${table}$name$::pg_catalog.regclass) THEN
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
  END IF;
END
$thresher$;
