-- The stored offsets of one topic: whoever publishes looks at them first. Index: the primary key.
SELECT kafka_partition, topic_id, next_offset FROM {offsets} WHERE capture = %(capture)s AND kafka_topic = %(topic)s
