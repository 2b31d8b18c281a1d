-- The head of a shard by id over all buckets: for transforms, which may give rows of several buckets the same key.
-- Index: (bucket, id) WHERE dispatched_time IS NULL, once per bucket, as in outbox_head. A bucket that returns `each`
-- rows may have more, so no row with a higher id than its last one is taken: it would overtake the bucket's remaining
-- rows.
WITH heads AS MATERIALIZED (
SELECT b.bucket AS own, h.*
  FROM unnest(%(buckets)s::smallint[]) AS b(bucket)
 CROSS JOIN LATERAL (
{pick}
 ORDER BY i.bucket, i.id
 LIMIT %(each)s{lock}) h
), cut AS (
SELECT max(f.id) AS id FROM heads f GROUP BY f.own HAVING count(*) >= %(each)s
)
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw
  FROM heads h
 WHERE h.id <= (SELECT coalesce(min(c.id), 9223372036854775807) FROM cut c)
 ORDER BY h.id
 LIMIT %(rows)s
