-- Writes many messages to the WAL as part of the caller's transaction, in the array's order.
SELECT count(pg_catalog.pg_logical_emit_message(true, %s, m.content))
  FROM unnest(%s::bytea[]) WITH ORDINALITY AS m(content, place)
