-- An operator's word that an outbox is no longer relayed under a name. Index: the primary key.
DELETE FROM {table} WHERE name = %(name)s AND outbox = %(outbox)s
