-- The term of a capture's leader. Index: the primary key.
SELECT term FROM {table} WHERE name = %s
