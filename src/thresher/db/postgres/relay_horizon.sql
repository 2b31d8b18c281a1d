-- The oldest transaction that has not ended: all before it have. Nothing where a row is set aside that blocks its key: what
-- follows it waits in the table, and would be read before it when it is put back.
SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text
 WHERE NOT EXISTS (SELECT FROM {dead} d WHERE d.blocking)
