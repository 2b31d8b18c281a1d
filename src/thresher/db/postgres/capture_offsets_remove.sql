-- Forgets a partition that a topic does not have any more, because somebody adopts that. Index: the primary key.
DELETE FROM {table} WHERE capture = %s AND kafka_topic = %s AND kafka_partition = %s
