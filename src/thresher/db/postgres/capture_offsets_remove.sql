-- Removes a partition that the topic no longer has, at an operator's request (adopt). Index: the primary key.
DELETE FROM {table} WHERE capture = %s AND kafka_topic = %s AND kafka_partition = %s
