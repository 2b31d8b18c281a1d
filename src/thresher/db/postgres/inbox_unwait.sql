-- The caller's limit again.
SELECT pg_catalog.set_config('lock_timeout', %s, true)
