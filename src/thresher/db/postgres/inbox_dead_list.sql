-- The dead messages behind an id, the oldest first; without `whole`, no content but the beginning of the key. Index: the
-- primary key.
SELECT id, context, message_id, kafka_topic, kafka_partition, kafka_offset,
       CASE WHEN %(whole)s THEN kafka_key ELSE pg_catalog.substring(kafka_key, 1, 1024) END,
       CASE WHEN %(whole)s THEN kafka_value END,
       CASE WHEN %(whole)s THEN kafka_header_keys ELSE '{}' END,
       CASE WHEN %(whole)s THEN kafka_header_values ELSE '{}' END,
       pg_catalog.octet_length(kafka_value), dead_time, reason, attempts
  FROM {dead}
 WHERE id OPERATOR(pg_catalog.>) %(after)s::pg_catalog.int8
   AND (%(context)s::pg_catalog.text IS NULL OR context OPERATOR(pg_catalog.=) %(context)s)
 ORDER BY id
 LIMIT %(most)s
