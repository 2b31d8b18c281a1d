-- Locks the stored offsets of a whole capture, for an operator's change. Index: the primary key.
SELECT kafka_topic, kafka_partition, topic_id, next_offset
  FROM {table}
 WHERE capture = %s
 ORDER BY 1, 2
   FOR UPDATE
