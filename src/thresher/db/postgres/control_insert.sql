-- Inserts the row of a relay that starts for the first time, unless the name or the outbox has a row. Indexes: the
-- primary key, and the unique one of the outbox.
INSERT INTO {table} (name, outbox, outbox_id, system_id, term, mode, shards)
VALUES (%(name)s, %(outbox)s, %(outbox_id)s, %(system_id)s, %(term)s, %(mode)s, %(shards)s)
ON CONFLICT DO NOTHING
