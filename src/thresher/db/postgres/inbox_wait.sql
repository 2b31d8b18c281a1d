-- How long the next statement waits for whoever processes the same message; and what the caller's limit was.
SELECT pg_catalog.current_setting('lock_timeout'), pg_catalog.set_config('lock_timeout', %s, true)
