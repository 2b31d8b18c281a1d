-- Writes a new leader's term. Index: the primary key. The lock on the offsets is the fence; the term tells an older
-- leader to end.
INSERT INTO {table} (name, term) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET term = EXCLUDED.term, term_time = pg_catalog.clock_timestamp()
