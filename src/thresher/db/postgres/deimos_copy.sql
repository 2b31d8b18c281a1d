-- Stores many messages in Deimos' shape. COPY calls no function, so the times (the server's, in UTC) are in the stream.
COPY {table}
  (topic, key, message, partition_key, created_at, updated_at)
FROM STDIN (FORMAT BINARY)
