-- Who leads a capture. Index: the primary key.
SELECT term FROM {table} WHERE name = %s
