-- The head of a shard: the oldest pending rows of each of its buckets, bucket by bucket, each bucket by id. Index:
-- (bucket, id) WHERE dispatched_time IS NULL, once per bucket. The bucket is compared by >= and <=, and ORDER BY names
-- it. With "=", the primary key would serve the order, and the planner may choose it: a scan for one bucket would then
-- read past the rows of all others. `each` bounds the rows of one bucket: rows of about the same age are on the same
-- pages, and a page is read and dirtied once, not once per bucket. `{lock}` is empty, or the lock clause of a sweeper.
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw
  FROM unnest(%(buckets)s::smallint[]) WITH ORDINALITY AS b(bucket, place)
 CROSS JOIN LATERAL (
{pick}
 ORDER BY i.bucket, i.id
 LIMIT %(each)s{lock}) h
 LIMIT %(rows)s
