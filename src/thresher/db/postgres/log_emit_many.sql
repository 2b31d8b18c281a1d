-- Writes many messages to the WAL as part of the caller's transaction, in the array's order.
SELECT count({emit}(m.content)) FROM unnest(%s::bytea[]) WITH ORDINALITY AS m(content, place)
