-- Ends the notes of all topics but these, which have pending rows: a process that has ended left the others. If another
-- process has noted one just now, it notes it again. Once in a process, without an index. As topic_lock_forget.
UPDATE {locks}
   SET error = false, retries = 0, reason = NULL, locked_at = NULL, missing_at = NULL, token = token + 1,
       last_processed_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
 WHERE topic <> ALL (%(pending)s::text[]) AND slot IS NULL AND parts = 1 AND missing_at IS NOT NULL
