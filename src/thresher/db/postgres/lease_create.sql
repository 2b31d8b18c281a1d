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
