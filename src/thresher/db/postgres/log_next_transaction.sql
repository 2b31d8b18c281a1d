-- The first transaction id that is not assigned yet: the commits of that transaction and of all later ones come after
-- the current end of the WAL.
SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text
