-- The head of a shard: the oldest pending rows of each of its buckets, in the buckets' order, each bucket by id.
-- Index: (bucket, id) WHERE dispatched_time IS NULL, once per bucket. Not "=", and ordered by the bucket too: else the
-- primary key would do for the order, and where one key has all rows, it is taken to look for the others. `each` bounds
-- what one bucket gives: rows of about the same age lie together, and a page is read and dirtied once instead of once
-- per bucket. `{lock}` is empty, or that of a sweeper.
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw
  FROM unnest(%(buckets)s::smallint[]) WITH ORDINALITY AS b(bucket, place)
 CROSS JOIN LATERAL (
{pick}
 ORDER BY i.bucket, i.id
 LIMIT %(each)s{lock}) h
 LIMIT %(rows)s
