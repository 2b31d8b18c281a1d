-- Whether a shard has anything pending at all, for idle looks: prepared once and executed bare, so its parameter is the
-- protocol's own. Index: (bucket, id) WHERE dispatched_time IS NULL.
SELECT FROM {table} WHERE bucket = ANY ($1::smallint[]) AND dispatched_time IS NULL LIMIT 1
