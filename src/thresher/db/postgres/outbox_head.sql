-- The head of a shard: the oldest pending rows of each of its buckets, in the buckets' order, each bucket by id.
-- Index: (bucket, id) WHERE dispatched_time IS NULL, once per bucket. Not "=", and ordered by the bucket too: else the
-- primary key would do for the order, and where one key has all rows, it is taken to look for the others. Left out: what
-- is claimed already (`{unclaimed}`: in flight, or marked by this shard), topics that are held, keys that a dead row blocks. `each` bounds what one bucket gives: rows of about the
-- same age lie together, and a page is read and dirtied once instead of once per bucket. Arrays are counted from 1,
-- whatever their bounds. Nothing is written to claim rows: what fences them is the producer's epoch.
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw
  FROM unnest(%(buckets)s::smallint[]) WITH ORDINALITY AS b(bucket, place)
 CROSS JOIN LATERAL (
SELECT i.id, greatest('0001-01-02', least('9999-12-30', i.create_time)) AS create_time,
       i.kafka_topic AS topic, i.kafka_key AS key,
       CASE WHEN octet_length(i.kafka_value) <= %(largest)s THEN i.kafka_value END AS value,
       CASE WHEN array_ndims(i.kafka_header_keys) = 1 THEN i.kafka_header_keys[:] ELSE '{}' END AS header_keys,
       CASE WHEN array_ndims(i.kafka_header_values) = 1 THEN i.kafka_header_values[:] ELSE '{}' END AS header_values,
       i.kafka_partition AS partition,
       CASE WHEN i.kafka_timestamp >= '1970-01-01' AND i.kafka_timestamp < '9999-12-30' THEN i.kafka_timestamp END
         AS timestamp,
       CASE WHEN octet_length(i.kafka_value) > %(largest)s THEN 'too-large'
            WHEN array_ndims(i.kafka_header_keys) > 1 OR array_ndims(i.kafka_header_values) > 1 THEN 'headers'
            WHEN NOT (i.kafka_timestamp >= '1970-01-01' AND i.kafka_timestamp < '9999-12-30') THEN 'timestamp'
            END AS flaw
  FROM {table} i
 WHERE i.bucket >= b.bucket AND i.bucket <= b.bucket AND i.dispatched_time IS NULL
   AND {unclaimed}
   AND i.kafka_topic <> ALL (%(held)s::text[])
   AND (i.kafka_key IS NULL OR (i.kafka_topic, i.kafka_key) NOT IN
         (SELECT d.kafka_topic, d.kafka_key FROM {dead} d WHERE d.blocking AND d.kafka_key IS NOT NULL))
 ORDER BY i.bucket, i.id
 LIMIT %(each)s) h
 LIMIT %(rows)s
