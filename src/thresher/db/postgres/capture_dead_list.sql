-- The dead records of a capture, the oldest first; without `whole`, no content but the beginning of the key. Index: the
-- primary key.
SELECT id, kafka_topic, topic_id, kafka_partition, kafka_offset, kafka_timestamp,
       CASE WHEN %(whole)s THEN kafka_key ELSE pg_catalog.substring(kafka_key, 1, 1024) END,
       CASE WHEN %(whole)s THEN kafka_value END,
       CASE WHEN %(whole)s THEN kafka_header_keys ELSE '{}' END,
       CASE WHEN %(whole)s THEN kafka_header_values ELSE '{}' END,
       pg_catalog.octet_length(kafka_value), dead_time, kind, reason
  FROM {table}
 WHERE capture = %(capture)s AND (%(topic)s::text IS NULL OR kafka_topic = %(topic)s)
   AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
 ORDER BY id
 LIMIT %(most)s
