-- Which of a shard's buckets have anything pending, for idle looks: prepared once and executed bare, so its parameter is
-- the protocol's own. Index: as in outbox_head, and for the same reason not "=".
SELECT b.bucket FROM unnest($1::smallint[]) AS b(bucket)
 CROSS JOIN LATERAL (
SELECT FROM {table} i WHERE i.bucket >= b.bucket AND i.bucket <= b.bucket AND i.dispatched_time IS NULL
 ORDER BY i.bucket, i.id LIMIT 1) h
