-- Ends the notes of missing topics that have no pending rows any more: a later row has the whole grace. The token rises, so
-- that a process that still knows the old note sets no later row aside. Index: topic.
UPDATE {locks}
   SET error = false, retries = 0, reason = NULL, locked_at = NULL, missing_at = NULL, token = token + 1,
       last_processed_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
 WHERE topic = ANY (%(topics)s::text[]) AND slot IS NULL AND parts = 1 AND missing_at IS NOT NULL
