-- The end of the log, and how far it is on disk: a slot is not advanced beyond that.
SELECT pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.pg_current_wal_flush_lsn()::text
