-- The archive of an outbox in Thresher's own shape: the outbox's columns, and the time at which a row was archived. A
-- row is identified by id and create time, because ids repeat after a TRUNCATE with RESTART IDENTITY.
CREATE TABLE {archive} (
  id                  BIGINT NOT NULL,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         TEXT NOT NULL,
  kafka_key           BYTEA,
  kafka_value         BYTEA,
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values BYTEA[] NOT NULL,
  kafka_partition     INTEGER,
  kafka_timestamp     TIMESTAMP WITH TIME ZONE,
  dispatched_time     TIMESTAMP WITH TIME ZONE NOT NULL,
  leader_id           UUID,
  bucket              SMALLINT NOT NULL,
  archived_time       TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (id, create_time)
);
