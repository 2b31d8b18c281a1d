-- The outbox as Deimos' migrations create it. The times have a default, in UTC as Rails writes them. Autovacuum is set
-- for rows that live for milliseconds. The index is Deimos' own: a relay reads by the primary key.
CREATE TABLE {table} (
  id            BIGSERIAL PRIMARY KEY,
  topic         VARCHAR NOT NULL,
  message       BYTEA,
  key           BYTEA,
  partition_key VARCHAR,
  session_id    VARCHAR,
  created_at    TIMESTAMP WITHOUT TIME ZONE NOT NULL DEFAULT (pg_catalog.clock_timestamp() AT TIME ZONE 'UTC'),
  updated_at    TIMESTAMP WITHOUT TIME ZONE NOT NULL DEFAULT (pg_catalog.clock_timestamp() AT TIME ZONE 'UTC')
) WITH (
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0,
  autovacuum_vacuum_insert_threshold = 50000,
  autovacuum_analyze_scale_factor = 0,
  autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX ON {table} (topic, id);
