-- Frees a lock after successful work. If single rows of the topic wait, `waiting_at` keeps the time since when. Index:
-- topic. Fence: the token.
UPDATE {locks}
   SET locked_by = NULL, locked_at = NULL, error = false, retries = 0, missing_at = NULL, reason = NULL,
       waiting_at = CASE WHEN %(waiting)s
                         THEN coalesce(waiting_at, pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())) END,
       last_processed_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
 WHERE topic = %(name)s AND token = %(token)s AND locked_by IS NOT NULL
