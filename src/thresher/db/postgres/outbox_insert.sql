-- One message, inside the caller's transaction. Needs no index; the caller's commit is its fence. What
-- is returned identifies the row: its receipt.
INSERT INTO {table}
  (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition, kafka_timestamp)
VALUES (%s, %s, %s, %s, %s, %s, %s)
RETURNING id, create_time
