-- Frees a lock whose topic had an error: nobody takes it until `locked_at` is old enough. `early` seconds of that time
-- count as over. If the topic is missing or forbidden, `missing_at` keeps the time of the first such error; any other
-- error clears it. Index: topic. Fence: the token.
UPDATE {locks}
   SET locked_by = NULL, error = true,
       locked_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
                   - %(early)s::double precision * interval '1 second',
       retries = retries + 1, reason = %(reason)s,
       missing_at = CASE WHEN %(missing)s
                         THEN coalesce(missing_at, pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())) END
 WHERE topic = %(name)s AND token = %(token)s AND locked_by IS NOT NULL
