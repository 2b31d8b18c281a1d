-- The id of a shard's first pending row after `last` that is not in flight, even if it must not be sent yet. Index: as
-- in outbox_head, and the bucket is compared in the same way.
SELECT min(h.id)
  FROM unnest(%(buckets)s::smallint[]) AS b(bucket)
 CROSS JOIN LATERAL (
SELECT i.id FROM {table} i
 WHERE i.bucket >= b.bucket AND i.bucket <= b.bucket AND i.id > %(last)s AND i.dispatched_time IS NULL
   AND {unclaimed}
 ORDER BY i.bucket, i.id
 LIMIT 1) h
