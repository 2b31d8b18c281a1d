-- Inserts the row of a relay that starts for the first time. An existing row of that name stays as it is.
INSERT INTO {table} (name, outbox, outbox_id, system_id, term, mode, shards)
VALUES (%(name)s, %(outbox)s, %(outbox_id)s, %(system_id)s, %(term)s, %(mode)s, %(shards)s)
ON CONFLICT (name) DO NOTHING
