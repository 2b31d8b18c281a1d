-- One message in goharvest's shape, whose create_time has no default. The caller's commit is its fence.
INSERT INTO {table}
  (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (clock_timestamp(), %s, %s, %s, %s, %s)
RETURNING id, create_time
