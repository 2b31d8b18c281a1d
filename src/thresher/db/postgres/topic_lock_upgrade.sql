-- Adds our own columns: the fencing token, the partition of the progress topic (`slot`), and the topic's number of
-- parts. Also since when the topic is missing, since when rows of it wait and up to which id, and the reason.
ALTER TABLE {locks}
  ADD COLUMN IF NOT EXISTS token BIGINT NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS slot INTEGER,
  ADD COLUMN IF NOT EXISTS parts INTEGER NOT NULL DEFAULT 1,
  ADD COLUMN IF NOT EXISTS missing_at TIMESTAMP WITHOUT TIME ZONE,
  ADD COLUMN IF NOT EXISTS waiting_at TIMESTAMP WITHOUT TIME ZONE,
  ADD COLUMN IF NOT EXISTS waiting_id BIGINT,
  ADD COLUMN IF NOT EXISTS reason TEXT,
  ADD COLUMN IF NOT EXISTS last_processed_at TIMESTAMP WITHOUT TIME ZONE
