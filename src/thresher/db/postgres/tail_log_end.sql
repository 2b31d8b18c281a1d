-- The end of the WAL, and how far it is flushed: a slot cannot be advanced beyond the flushed part.
SELECT pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.pg_current_wal_flush_lsn()::text
