-- Frees a lock after successful work. If single rows of the topic wait, with ids from `first` to `last`, `waiting_at`
-- keeps the time since when, and `waiting_id` the last one that has waited since then: later rows have a grace of their
-- own. Both are set anew once none of the rows up to `waiting_id` waits any more. Index: topic. Fence: the token.
UPDATE {locks}
   SET locked_by = NULL, locked_at = NULL, error = false, retries = 0, missing_at = NULL, reason = NULL,
       waiting_at = CASE WHEN %(first)s::bigint <= waiting_id THEN waiting_at
                         WHEN %(first)s::bigint IS NOT NULL
                         THEN pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()) END,
       waiting_id = CASE WHEN %(first)s::bigint <= waiting_id THEN waiting_id ELSE %(last)s::bigint END,
       last_processed_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
 WHERE topic = %(name)s AND token = %(token)s AND locked_by IS NOT NULL
