-- Where the dead records of a topic are: whoever reads it again passes them over. Index: the unique one.
SELECT kafka_partition, kafka_offset FROM {table} WHERE capture = %s AND kafka_topic = %s AND topic_id = %s
