-- Where rows are set aside that can never be sent. A blocking row keeps the later rows of its topic and key waiting.
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
-- For finding them, not their keys: a key may be longer than an index can hold.
CREATE INDEX ON {dead} (id) WHERE blocking;
