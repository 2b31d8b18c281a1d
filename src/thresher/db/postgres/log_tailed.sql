-- The quoted names of the outboxes in these control rows that a tail reads. Scan of a few rows.
SELECT c.outbox FROM {table} c WHERE c.mode = 'tail' ORDER BY c.outbox
