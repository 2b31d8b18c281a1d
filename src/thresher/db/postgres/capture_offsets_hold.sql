-- Keeps the stored offsets of a capture from moving while its topics are read again. Index: the primary key. Two
-- sessions may hold this lock at once. A batch is applied under FOR UPDATE, so it waits.
SELECT kafka_topic, kafka_partition, topic_id, next_offset
  FROM {table}
 WHERE capture = %s
 ORDER BY 1, 2
   FOR KEY SHARE
