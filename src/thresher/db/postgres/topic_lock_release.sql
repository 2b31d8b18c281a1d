-- Frees a lock after work that succeeded. Index: topic. Fence: the token.
UPDATE {locks}
   SET locked_by = NULL, locked_at = NULL, error = false, retries = 0, errored_at = NULL, reason = NULL,
       last_processed_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
 WHERE topic = %(name)s AND token = %(token)s AND locked_by IS NOT NULL
