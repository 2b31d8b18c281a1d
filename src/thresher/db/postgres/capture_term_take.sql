-- Writes the term of whoever takes over. Index: the primary key. The offsets are the fence; the term tells an older leader to end.
INSERT INTO {table} (name, term) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET term = EXCLUDED.term, term_time = pg_catalog.clock_timestamp()
