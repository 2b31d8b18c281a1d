-- Locks a manifest, in the transaction that removes its rows or changes it. No row: another archiver has finished the batch,
-- or taken it over with another attempt. Fence: batch and attempt. Index: the primary key.
SELECT 1
  FROM {batches}
 WHERE batch = %(batch)s AND attempt = %(attempt)s AND finish_time IS NULL
   FOR UPDATE
