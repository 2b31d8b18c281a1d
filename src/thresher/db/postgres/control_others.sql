-- The other name under which an outbox is relayed. There is none, unless an operator has renamed its relay. Index: the
-- unique one of the outbox.
SELECT name FROM {table} WHERE outbox = %(outbox)s AND name <> %(name)s
