-- Renames a relay, as control_rename does, if the new name already has a row: the old name's row is deleted.
DELETE FROM {table} WHERE name = %(old)s AND name <> %(name)s AND outbox = %(outbox)s
