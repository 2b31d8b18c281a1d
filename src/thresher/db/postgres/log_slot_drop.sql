-- Drops a slot that is not in use, and releases the WAL that was kept for it.
SELECT pg_catalog.pg_drop_replication_slot(%s)
