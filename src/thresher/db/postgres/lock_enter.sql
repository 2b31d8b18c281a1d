-- Locks the row of a lock until the transaction ends; the row is inserted if there is none. Index: the primary key.
-- Parameter: the lock's name.
INSERT INTO {table} AS l (name) VALUES (%s)
ON CONFLICT (name) DO UPDATE SET pid = l.pid
