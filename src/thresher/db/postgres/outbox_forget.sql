-- Deletes rows that the same transaction has inserted: they remain in the WAL, but not in the table. Index: the primary
-- key.
DELETE FROM {table} WHERE id OPERATOR(pg_catalog.=) ANY (%s::bigint[])
