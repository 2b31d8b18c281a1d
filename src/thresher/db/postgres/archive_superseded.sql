-- Batches that took more than one attempt: the files of their earlier attempts are not part of the archive. Index:
-- (outbox) WHERE attempt > 1.
SELECT batch, directory, directory_id, stem, attempt, finish_time IS NOT NULL
  FROM {batches}
 WHERE outbox = %s AND attempt > 1
