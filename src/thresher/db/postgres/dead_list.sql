-- Rows that are set aside, oldest first. Parameters: topic and kind, or NULL for all; ids, or NULL for all; how many.
SELECT id, create_time, kafka_topic, kafka_key, octet_length(kafka_value), dead_time, kind, reason, attempts, blocking
  FROM {dead}
 WHERE (%(topic)s::text IS NULL OR kafka_topic = %(topic)s)
   AND (%(kind)s::text IS NULL OR kind = %(kind)s)
   AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
 ORDER BY id, create_time
 LIMIT %(rows)s
