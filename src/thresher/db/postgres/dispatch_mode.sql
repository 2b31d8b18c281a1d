-- What the relay of an outbox promises. Few rows: no index.
SELECT name, mode FROM {table} WHERE outbox = %s
