-- Stores many messages in goharvest's shape. COPY calls no function, so create_time (the server's) is in the stream.
COPY {table}
  (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
FROM STDIN (FORMAT BINARY)
