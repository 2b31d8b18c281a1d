-- Stores one message in the caller's transaction. Needs no index. Fence: the caller's commit. The returned id and
-- create time are the message's receipt.
INSERT INTO {table}
  (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition, kafka_timestamp)
VALUES (%s, %s, %s, %s, %s, %s, %s)
RETURNING id, create_time
