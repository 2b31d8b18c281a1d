-- The dead records of a capture, the oldest first. Index: the primary key.
SELECT id, kafka_topic, topic_id, kafka_partition, kafka_offset, kafka_timestamp, kafka_key, kafka_value, kafka_header_keys,
       kafka_header_values, dead_time, kind, reason
  FROM {table}
 WHERE capture = %(capture)s AND (%(topic)s::text IS NULL OR kafka_topic = %(topic)s)
   AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
 ORDER BY id
 LIMIT %(most)s
