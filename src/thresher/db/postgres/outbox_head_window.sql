-- The rows of a shard among some ids, one bucket after another: for one of many shards, which would step over most of what
-- it met by age. Index: as in outbox_head, and for the same reason not "=". `most` is beyond what should be among them.
SELECT h.*
  FROM unnest(%(buckets)s::smallint[]) WITH ORDINALITY AS b(bucket, place)
 CROSS JOIN LATERAL (
{pick}
 ORDER BY i.bucket, i.id) h
 LIMIT %(most)s
