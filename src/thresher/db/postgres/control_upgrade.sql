-- Adds what tables of earlier versions lack: the secret that progress records are sealed with, one per row, the
-- incarnation of the database on which topic-lock relays have settled everything, and the index that gives an outbox one row.
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS secret UUID NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
  ADD COLUMN IF NOT EXISTS settled_on TEXT;
CREATE UNIQUE INDEX IF NOT EXISTS thresher_relay_outbox_key ON {table} (outbox)
