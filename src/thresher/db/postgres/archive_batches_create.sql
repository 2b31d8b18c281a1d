-- The manifests of archive files: the rows of a batch by id, create time and version (xmin), written before its file and
-- emptied when its rows have left the outbox. What is left of it says which files are finished, and what is in them.
CREATE TABLE IF NOT EXISTS {table} (
  batch        UUID PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
  outbox       TEXT NOT NULL,
  directory    TEXT NOT NULL,
  directory_id UUID NOT NULL,
  stem         TEXT NOT NULL,
  -- The file is <stem>-<batch>-<attempt>.parquet: each attempt at writing it has a name of its own.
  attempt      INTEGER NOT NULL DEFAULT 1,
  ids          BIGINT[] NOT NULL,
  create_times TIMESTAMP WITH TIME ZONE[] NOT NULL,
  versions     BIGINT[] NOT NULL,
  begin_time   TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  -- Of a finished file.
  finish_time  TIMESTAMP WITH TIME ZONE,
  row_count    BIGINT,
  first_id     BIGINT,
  last_id      BIGINT
);
CREATE INDEX ON {table} (outbox) WHERE finish_time IS NULL;
CREATE INDEX ON {table} (outbox) WHERE attempt > 1;
CREATE INDEX ON {table} (directory, begin_time);
