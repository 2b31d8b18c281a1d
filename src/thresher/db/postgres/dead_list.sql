-- Dead rows, oldest first. Parameters: as in dead_chosen; how many.
SELECT id, create_time, kafka_topic, kafka_key, octet_length(kafka_value), dead_time, kind, reason, attempts, blocking
  FROM {dead} d
 WHERE {chosen}
 ORDER BY id, create_time
 LIMIT %(rows)s
