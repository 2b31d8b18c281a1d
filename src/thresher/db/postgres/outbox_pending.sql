-- Pending rows by bucket, counted up to 10,001. Index: (bucket, id) WHERE dispatched_time IS NULL.
SELECT bucket, count(*) FROM (SELECT bucket FROM {table} WHERE dispatched_time IS NULL LIMIT 10001) p GROUP BY bucket
