-- The topic locks as Deimos' migrations create them, and a fencing token for each lock.
CREATE TABLE {table} (
  id                BIGSERIAL PRIMARY KEY,
  topic             VARCHAR NOT NULL,
  locked_by         VARCHAR,
  locked_at         TIMESTAMP WITHOUT TIME ZONE,
  error             BOOLEAN NOT NULL DEFAULT false,
  retries           INTEGER NOT NULL DEFAULT 0,
  last_processed_at TIMESTAMP WITHOUT TIME ZONE,
  token             BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX ON {table} (topic);
CREATE INDEX ON {table} (locked_by, error);
CREATE INDEX ON {table} (locked_at);
