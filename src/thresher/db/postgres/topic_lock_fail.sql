-- Frees a lock whose topic errored: it rests until `locked_at` is old enough. Since when the topic is missing or forbidden is
-- noted: any other error says nothing about that. Index: topic. Fence: the token.
UPDATE {locks}
   SET locked_by = NULL, locked_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()), error = true,
       retries = retries + 1, reason = %(reason)s,
       missing_at = CASE WHEN %(missing)s
                         THEN coalesce(missing_at, pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())) END
 WHERE topic = %(name)s AND token = %(token)s AND locked_by IS NOT NULL
