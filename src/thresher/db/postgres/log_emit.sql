-- One message into the log, as part of the caller's transaction: gone with it if it rolls back.
SELECT pg_catalog.pg_logical_emit_message(true, %s, %s::bytea)
