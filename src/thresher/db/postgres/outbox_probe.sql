-- Which of a shard's buckets have a pending row: the poll of an idle shard. Executed as a bare prepared statement,
-- hence the `$1`. Index: as in outbox_head, and the bucket is compared in the same way.
SELECT b.bucket FROM unnest($1::smallint[]) AS b(bucket)
 CROSS JOIN LATERAL (
SELECT FROM {table} i WHERE i.bucket >= b.bucket AND i.bucket <= b.bucket AND i.dispatched_time IS NULL
 ORDER BY i.bucket, i.id LIMIT 1) h
