-- The dead-letter table: rows that can never be sent. A blocking row makes later rows of its topic and key wait.
CREATE TABLE {dead} (
  id                  BIGINT NOT NULL,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         TEXT NOT NULL,
  kafka_key           BYTEA,
  kafka_value         BYTEA,
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values BYTEA[] NOT NULL,
  kafka_partition     INTEGER,
  kafka_timestamp     TIMESTAMP WITH TIME ZONE,
  dead_time           TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  kind                TEXT NOT NULL,
  reason              TEXT NOT NULL,
  attempts            INTEGER NOT NULL,
  blocking            BOOLEAN NOT NULL,
  PRIMARY KEY (id, create_time)
);
-- Finds blocking rows by id. Not by key: a key may be longer than an index entry can be.
CREATE INDEX ON {dead} (id) WHERE blocking;
