-- The offsets of a topic's dead records: a re-read of the topic skips them. Index: the unique one.
SELECT kafka_partition, kafka_offset FROM {table} WHERE capture = %s AND kafka_topic = %s AND topic_id = %s
