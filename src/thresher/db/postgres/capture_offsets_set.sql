-- Sets a stored offset to where a topic begins or ends now, at an operator's request (adopt). Index: the primary key.
UPDATE {table} SET topic_id = %s, next_offset = %s, moved_time = pg_catalog.clock_timestamp()
 WHERE capture = %s AND kafka_topic = %s AND kafka_partition = %s
