-- One dead row with its content; several if the id was reused. Parameter: its id. Index: the primary key.
SELECT id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, dead_time, kind,
       reason, attempts, blocking
  FROM {dead}
 WHERE id = %(id)s
 ORDER BY create_time
