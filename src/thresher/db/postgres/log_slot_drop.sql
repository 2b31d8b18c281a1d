-- Drops a slot that nobody reads, with all the log that was kept for it.
SELECT pg_catalog.pg_drop_replication_slot(%s)
