-- Writes one message to the WAL as part of the caller's transaction: a rollback discards it.
SELECT {emit}(%s::pg_catalog.bytea)
