-- The tables of captures. `thresher_captures`: who leads each. `thresher_capture_offsets`: the only position, moved in the
-- transaction that applies records; its rows are small and updated in place. `thresher_capture_dead`: records that could not
-- be applied; its unique key serves whoever waits for a record.
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
  next_offset      BIGINT NOT NULL CHECK (next_offset >= 0),
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
