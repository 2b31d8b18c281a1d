-- One message in Deimos' shape, whose times have no default where Rails made the table. The caller's commit is its fence.
INSERT INTO {table}
  (topic, key, message, partition_key, created_at, updated_at)
VALUES (%s, %s, %s, %s, clock_timestamp() AT TIME ZONE 'UTC', clock_timestamp() AT TIME ZONE 'UTC')
