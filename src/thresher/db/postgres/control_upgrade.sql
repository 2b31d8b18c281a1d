-- Gives the table of an earlier version what progress is sealed with: each row a secret of its own.
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS secret UUID NOT NULL DEFAULT pg_catalog.gen_random_uuid()
