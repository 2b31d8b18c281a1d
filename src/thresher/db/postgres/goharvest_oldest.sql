-- The age of the oldest row in seconds. Index: the primary key.
SELECT extract(epoch FROM pg_catalog.clock_timestamp() - h.create_time)::double precision
  FROM (SELECT create_time FROM {table} ORDER BY id LIMIT 1) h
