-- Stores one message in Deimos' shape. Tables that Rails created have no default for the times. Fence: the caller's
-- commit. The returned id and create time are the message's receipt.
INSERT INTO {table}
  (topic, key, message, partition_key, created_at, updated_at)
VALUES (%s, %s, %s, %s, pg_catalog.clock_timestamp() AT TIME ZONE 'UTC', pg_catalog.clock_timestamp() AT TIME ZONE 'UTC')
RETURNING id, created_at AT TIME ZONE 'UTC'
