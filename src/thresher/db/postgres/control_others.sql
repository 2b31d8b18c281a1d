-- The other names under which an outbox is relayed. There are none, unless an operator has renamed its relay.
SELECT name FROM {table} WHERE outbox = %(outbox)s AND name <> %(name)s ORDER BY name
