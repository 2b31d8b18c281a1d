-- The tables of captures. `thresher_captures`: the leader of each capture. `thresher_capture_offsets`: the stored
-- offsets, which are the only record of the position. An offset moves in the transaction that applies records, as a HOT
-- update of a small row. `thresher_capture_dead`: records that could not be applied; callers that wait for a record
-- read it by its unique key. A role other than the tables' owner sees and changes only the rows that a policy gives it.
CREATE TABLE IF NOT EXISTS {captures} (
  name       TEXT PRIMARY KEY,
  term       TEXT NOT NULL,
  term_time  TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE TABLE IF NOT EXISTS {offsets} (
  capture          TEXT NOT NULL,
  kafka_topic      TEXT NOT NULL,
  kafka_partition  INTEGER NOT NULL,
  topic_id         TEXT NOT NULL,
  next_offset      BIGINT NOT NULL CHECK (next_offset OPERATOR(pg_catalog.>=) 0),
  moved_time       TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (capture, kafka_topic, kafka_partition)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {dead} (
  id                   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  capture              TEXT NOT NULL,
  kafka_topic          TEXT NOT NULL,
  topic_id             TEXT NOT NULL,
  kafka_partition      INTEGER NOT NULL,
  kafka_offset         BIGINT NOT NULL,
  kafka_timestamp      BIGINT NOT NULL,
  kafka_key            BYTEA,
  kafka_value          BYTEA,
  kafka_header_keys    TEXT[] NOT NULL,
  kafka_header_values  BYTEA[] NOT NULL,
  dead_time            TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  kind                 TEXT NOT NULL,
  reason               TEXT NOT NULL,
  UNIQUE (capture, kafka_topic, kafka_partition, kafka_offset, topic_id)
);
