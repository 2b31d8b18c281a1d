-- One message in Deimos' shape, whose times have no default where Rails made the table. The caller's commit is its fence.
-- What is returned identifies the row: its receipt.
INSERT INTO {table}
  (topic, key, message, partition_key, created_at, updated_at)
VALUES (%s, %s, %s, %s, clock_timestamp() AT TIME ZONE 'UTC', clock_timestamp() AT TIME ZONE 'UTC')
RETURNING id, created_at AT TIME ZONE 'UTC'
