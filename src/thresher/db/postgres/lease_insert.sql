-- Inserts the lease of a relay that never had one, without a holder. Index: the primary key.
INSERT INTO {table} (name, holder, token, until, span)
VALUES (%(name)s, %(holder)s, 0, '-infinity', '0')
ON CONFLICT (name) DO NOTHING
