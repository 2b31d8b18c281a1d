-- A new leader writes its term, and reads the layout that it finds: after it, none but the leader writes another.
UPDATE {table} SET term = %(term)s, term_time = pg_catalog.clock_timestamp(), settled_on = NULL WHERE name = %(name)s
RETURNING outbox, outbox_id::text, system_id, term::text, mode, shards, progress_topic_id, term_time, secret::text, settled_on
