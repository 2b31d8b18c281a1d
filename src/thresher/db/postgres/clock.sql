-- The database's clock: no other clock sets a create_time.
SELECT pg_catalog.clock_timestamp()
