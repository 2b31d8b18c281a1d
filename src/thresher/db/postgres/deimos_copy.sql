-- Many messages in Deimos' shape. COPY calls no function, so the times (the server's, in UTC) are part of the stream.
COPY {table}
  (topic, key, message, partition_key, created_at, updated_at)
FROM STDIN (FORMAT BINARY)
