-- Frees a lock whose topic errored: it rests until `locked_at` is old enough. Index: topic. Fence: the token.
UPDATE {locks}
   SET locked_by = NULL, locked_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()), error = true,
       retries = retries + 1, reason = %(reason)s,
       errored_at = coalesce(errored_at, pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()))
 WHERE topic = %(name)s AND token = %(token)s AND locked_by IS NOT NULL
