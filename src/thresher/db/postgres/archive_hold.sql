-- Locks a manifest in the transaction that removes the batch's rows or changes the manifest. No row: another archiver
-- has finished the batch, or has begun another attempt at it. Fence: batch and attempt. Index: the primary key.
SELECT 1
  FROM {batches}
 WHERE batch = %(batch)s AND attempt = %(attempt)s AND finish_time IS NULL
   FOR UPDATE
