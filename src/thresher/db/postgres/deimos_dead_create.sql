-- Where rows of Deimos' shape are set aside, under the names that our own dead rows have, and with their partition keys. A
-- blocking row keeps the later rows of its topic and key waiting. There are no headers; the lists are for tools that show
-- the dead rows of any shape.
CREATE TABLE {dead} (
  id                  BIGINT NOT NULL,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         TEXT NOT NULL,
  kafka_key           BYTEA,
  kafka_value         BYTEA,
  kafka_header_keys   TEXT[] NOT NULL DEFAULT '{}',
  kafka_header_values BYTEA[] NOT NULL DEFAULT '{}',
  partition_key       TEXT,
  dead_time           TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  kind                TEXT NOT NULL,
  reason              TEXT NOT NULL,
  attempts            INTEGER NOT NULL,
  blocking            BOOLEAN NOT NULL,
  PRIMARY KEY (id, create_time)
);
-- For finding them, not their keys: a key may be longer than an index can hold.
CREATE INDEX ON {dead} (id) WHERE blocking;
