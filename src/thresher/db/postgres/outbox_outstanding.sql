-- How many rows wait, counted up to `most`. Index: (bucket, id) WHERE dispatched_time IS NULL, once per bucket, and the
-- bucket is compared as in outbox_head. Nothing is locked.
SELECT pg_catalog.count(*)
  FROM (SELECT FROM pg_catalog.generate_series(0, 63) AS b(bucket)
         CROSS JOIN LATERAL (
        SELECT FROM {table} i
         WHERE i.bucket OPERATOR(pg_catalog.>=) b.bucket AND i.bucket OPERATOR(pg_catalog.<=) b.bucket
           AND i.dispatched_time IS NULL
         ORDER BY i.bucket, i.id
         LIMIT %(most)s) h
         LIMIT %(most)s) p
