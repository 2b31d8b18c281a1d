-- The dead messages, the oldest first. Index: the primary key.
SELECT id, context, message_id, kafka_topic, kafka_partition, kafka_offset, kafka_key, kafka_value, kafka_header_keys,
       kafka_header_values, dead_time, reason, attempts
  FROM {dead}
 WHERE (%(context)s::pg_catalog.text IS NULL OR context OPERATOR(pg_catalog.=) %(context)s)
 ORDER BY id
 LIMIT %(most)s
