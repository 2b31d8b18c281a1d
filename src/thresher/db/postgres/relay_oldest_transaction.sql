-- The oldest transaction that is still running: all older ones have ended. No row while a dead row blocks its key: the
-- key's later rows wait in the table, and a reader by age would take them before the dead row that is put back.
SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text
 WHERE NOT EXISTS (SELECT FROM {dead} d WHERE d.blocking)
