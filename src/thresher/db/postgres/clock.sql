-- The database's clock: no other clock sets a create_time.
SELECT clock_timestamp()
