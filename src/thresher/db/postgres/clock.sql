-- The database's clock: the only one that writes a create_time.
SELECT clock_timestamp()
