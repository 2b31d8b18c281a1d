-- Frees a lock that this session holds. Index: the primary key. Parameter: the lock's name.
UPDATE {table} SET pid = NULL, started = NULL, role = NULL WHERE name = %s AND pid = pg_catalog.pg_backend_pid()
