-- Writes a new leader's term and returns the recorded layout. From then on only this leader can write a layout.
UPDATE {table} SET term = %(term)s, term_time = pg_catalog.clock_timestamp(), settled_on = NULL WHERE name = %(name)s
RETURNING outbox, outbox_id::text, system_id, term::text, mode, shards, progress_topic_id, term_time, secret::text, settled_on
