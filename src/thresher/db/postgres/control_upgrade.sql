-- Gives the table of an earlier version what progress is sealed with, each row a secret of its own; and what tells on which
-- incarnation of the database a group of topic-lock relays has settled everything.
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS secret UUID NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
  ADD COLUMN IF NOT EXISTS settled_on TEXT
