-- Batches whose rows have not left the outbox yet, the oldest first. Index: (outbox) WHERE finish_time IS NULL.
SELECT batch
  FROM {batches}
 WHERE outbox = %s AND finish_time IS NULL
 ORDER BY begin_time, batch
