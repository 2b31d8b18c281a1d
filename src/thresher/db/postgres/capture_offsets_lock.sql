-- Locks the stored offsets of some partitions. Index: the primary key. This lock is the fence of every batch: only its
-- holder applies records of these partitions. Rows are locked in one order, so that two batches cannot deadlock.
SELECT kafka_topic, kafka_partition, topic_id, next_offset
  FROM {table}
 WHERE capture = %s
   AND (kafka_topic, kafka_partition) IN (SELECT * FROM unnest(%s::text[], %s::bigint[]))
 ORDER BY 1, 2
   FOR UPDATE
