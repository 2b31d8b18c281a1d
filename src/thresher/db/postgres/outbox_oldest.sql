-- The age of the oldest pending row in seconds, from the first row of each bucket. Index: (bucket, id).
SELECT extract(epoch FROM pg_catalog.clock_timestamp() - min(h.create_time))::double precision
  FROM generate_series(0, 63) AS b(bucket)
 CROSS JOIN LATERAL (SELECT i.create_time FROM {table} i
                      WHERE i.bucket = b.bucket AND i.dispatched_time IS NULL ORDER BY i.id LIMIT 1) h
