-- Adds the guard columns: the partition, offset and timestamp of the record that wrote the row. The guard keeps an
-- older record from overwriting a newer one. The columns have no default, so the table is not rewritten.
ALTER TABLE {table}
  ADD COLUMN IF NOT EXISTS {partition} INTEGER,
  ADD COLUMN IF NOT EXISTS {offset} BIGINT,
  ADD COLUMN IF NOT EXISTS {timestamp} BIGINT;
