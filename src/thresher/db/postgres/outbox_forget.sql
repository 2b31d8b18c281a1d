-- Deletes rows that the same transaction has inserted: the log has them, the table does not. Index: the primary key.
DELETE FROM {table} WHERE id = ANY (%s::bigint[])
