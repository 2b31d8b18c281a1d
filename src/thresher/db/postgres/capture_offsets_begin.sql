-- Stores the first offset of a partition that has no stored offset yet. Index: the primary key.
INSERT INTO {table} (capture, kafka_topic, kafka_partition, topic_id, next_offset) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (capture, kafka_topic, kafka_partition) DO NOTHING
