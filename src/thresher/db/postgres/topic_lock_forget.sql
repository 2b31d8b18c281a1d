-- Ends the notes of missing topics that have no pending rows any more: a later row has the whole grace. Index: topic.
UPDATE {locks}
   SET error = false, retries = 0, reason = NULL, locked_at = NULL, missing_at = NULL,
       last_processed_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
 WHERE topic = ANY (%(topics)s::text[]) AND slot IS NULL AND parts = 1 AND missing_at IS NOT NULL
