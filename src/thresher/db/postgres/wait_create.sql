-- One row per shard of a pipeline: the topics and rows that wait, and for how many seconds they did when the row was
-- written. A role other than the table's owner sees and changes only the rows that a policy gives it.
CREATE TABLE IF NOT EXISTS {table} (
  name          TEXT NOT NULL,
  shard         INTEGER NOT NULL,
  topics        TEXT[] NOT NULL,
  topic_seconds DOUBLE PRECISION[] NOT NULL,
  ids           BIGINT[] NOT NULL,
  create_times  BIGINT[] NOT NULL,
  row_seconds   DOUBLE PRECISION[] NOT NULL,
  written       TIMESTAMP WITH TIME ZONE NOT NULL,
  PRIMARY KEY (name, shard)
);
