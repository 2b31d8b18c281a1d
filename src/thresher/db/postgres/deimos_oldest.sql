-- The age of the oldest row in seconds. Index: the primary key.
SELECT extract(epoch FROM pg_catalog.clock_timestamp() - h.created_at AT TIME ZONE 'UTC')::double precision
  FROM (SELECT created_at FROM {table} ORDER BY id LIMIT 1) h
