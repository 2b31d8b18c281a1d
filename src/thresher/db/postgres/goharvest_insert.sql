-- Stores one message in goharvest's shape, whose create_time has no default. Fence: the caller's commit.
INSERT INTO {table}
  (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (pg_catalog.clock_timestamp(), %s, %s, %s, %s, %s)
RETURNING id, create_time
