-- Writes one message to the WAL as part of the caller's transaction: a rollback discards it.
SELECT pg_catalog.pg_logical_emit_message(true, %s, %s::bytea)
