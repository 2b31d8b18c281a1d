-- The inbox: the messages that were processed, per context, which names the processor. The primary key decides which of
-- several transactions processes a message. The index on the time serves retention. The second table holds messages
-- that their handler cannot process.
CREATE TABLE {table} (
  context       VARCHAR(100) NOT NULL,
  message_id    VARCHAR(255) NOT NULL,
  received_time TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (context, message_id)
);
CREATE INDEX ON {table} (received_time);
CREATE TABLE {dead} (
  id                  BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  context             VARCHAR(100) NOT NULL,
  message_id          VARCHAR(255) NOT NULL,
  kafka_topic         TEXT NOT NULL,
  kafka_partition     INTEGER NOT NULL,
  kafka_offset        BIGINT NOT NULL,
  kafka_key           BYTEA,
  kafka_value         BYTEA,
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values BYTEA[] NOT NULL,
  dead_time           TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  reason              TEXT NOT NULL,
  attempts            INTEGER NOT NULL
);
