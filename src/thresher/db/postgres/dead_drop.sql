-- Removes set-aside rows for good; what they block goes on. Parameter: ids. Index: the primary key.
DELETE FROM {dead} WHERE id = ANY (%s::bigint[])
