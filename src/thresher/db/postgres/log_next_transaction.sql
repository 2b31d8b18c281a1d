-- The first transaction that has not begun: from it on, all commits lie behind the end of the log as it is now.
SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text
