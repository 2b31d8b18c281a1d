-- Empties the manifest of a batch whose rows have left the outbox. The remaining columns say which file holds the rows.
-- Fence: archive_hold runs first in the same transaction.
UPDATE {batches}
   SET finish_time = pg_catalog.clock_timestamp(), row_count = %(rows)s,
       first_id = %(first)s, last_id = %(last)s,
       ids = '{}', create_times = '{}', versions = '{}'
 WHERE batch = %(batch)s
