-- Under which other names an outbox is relayed: there is none, unless an operator has renamed its relay.
SELECT name FROM {table} WHERE outbox = %(outbox)s AND name <> %(name)s ORDER BY name
