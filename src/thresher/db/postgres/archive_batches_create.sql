-- The manifests of archive files, one row per batch. A manifest lists the batch's rows by id, create time and version
-- (xmin). It is written before the file. The lists are emptied once the rows have left the outbox; the other columns
-- stay, and say which files are finished and which ids they hold. A role other than the table's owner changes only the
-- rows that a policy gives it. It reads all of them: several outboxes may share a directory.
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
  -- Set once the file is finished and its rows have left the outbox.
  finish_time  TIMESTAMP WITH TIME ZONE,
  row_count    BIGINT,
  first_id     BIGINT,
  last_id      BIGINT
);
CREATE INDEX ON {table} (outbox) WHERE finish_time IS NULL;
CREATE INDEX ON {table} (outbox) WHERE attempt > 1;
CREATE INDEX ON {table} (directory, begin_time);
