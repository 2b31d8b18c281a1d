-- Stores many messages in one stream, in the caller's transaction. The column order is that of outbox_insert.
COPY {table}
  (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition, kafka_timestamp)
FROM STDIN (FORMAT BINARY)
