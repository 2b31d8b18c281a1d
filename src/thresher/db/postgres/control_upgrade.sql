-- Adds the columns that tables of earlier versions lack: the secret that progress records are sealed with, one per row,
-- and the incarnation of the database on which topic-lock relays have settled everything.
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS secret UUID NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
  ADD COLUMN IF NOT EXISTS settled_on TEXT
