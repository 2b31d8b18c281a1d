-- One row per relay: who leads it, and until when by this database's clock.
CREATE TABLE IF NOT EXISTS {table} (
  name   TEXT PRIMARY KEY,
  holder UUID NOT NULL,
  token  BIGINT NOT NULL,
  until  TIMESTAMP WITH TIME ZONE NOT NULL,
  -- How long the holder may be silent.
  span   INTERVAL NOT NULL
);
