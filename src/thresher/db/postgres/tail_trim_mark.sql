-- The oldest transaction that is still running, and then the end of the WAL: the commit of every older one is before
-- it.
SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text, pg_catalog.pg_current_wal_insert_lsn()::text
