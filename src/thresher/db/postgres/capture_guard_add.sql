-- The columns by which a row of an entity never goes back: from which record it was written. Cheap: they have no default.
ALTER TABLE {table}
  ADD COLUMN IF NOT EXISTS {partition} INTEGER,
  ADD COLUMN IF NOT EXISTS {offset} BIGINT,
  ADD COLUMN IF NOT EXISTS {timestamp} BIGINT;
