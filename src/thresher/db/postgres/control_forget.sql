-- The same where the new name is known already.
DELETE FROM {table} WHERE name = %(old)s AND name <> %(name)s AND outbox = %(outbox)s
