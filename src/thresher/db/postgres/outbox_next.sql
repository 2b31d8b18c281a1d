-- The id of a shard's first pending row behind `last` that is not in flight, whether or not it may be sent. Index: as in
-- outbox_head, and for the same reason not "=".
SELECT min(h.id)
  FROM unnest(%(buckets)s::smallint[]) AS b(bucket)
 CROSS JOIN LATERAL (
SELECT i.id FROM {table} i
 WHERE i.bucket >= b.bucket AND i.bucket <= b.bucket AND i.id > %(last)s AND i.dispatched_time IS NULL
   AND {unclaimed}
 ORDER BY i.bucket, i.id
 LIMIT 1) h
