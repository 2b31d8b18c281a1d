-- Writes many messages to the WAL as part of the caller's transaction, in the array's order.
SELECT pg_catalog.count({emit}(m.content)) FROM pg_catalog.unnest(%s::pg_catalog.bytea[]) WITH ORDINALITY AS m(content, place)
