-- An operator's word that an outbox is relayed under one name from now on, and no longer under others.
DELETE FROM {table} WHERE outbox = %(outbox)s AND name <> %(name)s
