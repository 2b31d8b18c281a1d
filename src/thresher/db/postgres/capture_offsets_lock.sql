-- Locks the stored offsets of some partitions. Index: the primary key. This is the fence of every batch: whoever holds the rows
-- is the only one to apply records of these partitions. In one order, so that no two wait for each other.
SELECT kafka_topic, kafka_partition, topic_id, next_offset
  FROM {table}
 WHERE capture = %s
   AND (kafka_topic, kafka_partition) IN (SELECT * FROM unnest(%s::text[], %s::bigint[]))
 ORDER BY 1, 2
   FOR UPDATE
