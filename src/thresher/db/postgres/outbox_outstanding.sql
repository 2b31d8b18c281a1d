-- How many rows wait, counted up to `most`. Index: (bucket, id) WHERE dispatched_time IS NULL, once per bucket, and the
-- bucket is compared as in outbox_head. Nothing is locked.
SELECT count(*)
  FROM (SELECT FROM generate_series(0, 63) AS b(bucket)
         CROSS JOIN LATERAL (
        SELECT FROM {table} i WHERE i.bucket >= b.bucket AND i.bucket <= b.bucket AND i.dispatched_time IS NULL
         ORDER BY i.bucket, i.id
         LIMIT %(most)s) h
         LIMIT %(most)s) p
