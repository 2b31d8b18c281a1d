-- Holds the stored offsets of a capture where they are, while its topics are read again. Index: the primary key. Two may hold
-- them; whoever applies a batch locks them for update, and waits.
SELECT kafka_topic, kafka_partition, topic_id, next_offset
  FROM {table}
 WHERE capture = %s
 ORDER BY 1, 2
   FOR KEY SHARE
