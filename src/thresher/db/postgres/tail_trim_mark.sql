-- The oldest transaction that has not ended, and then the end of the log: every older one's commit lies before it.
SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text, pg_catalog.pg_current_wal_insert_lsn()::text
