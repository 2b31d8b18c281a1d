-- Marks the log behind the making of a slot: whoever reads the mark by it knows that all later transactions are in its log.
-- The content says by which publication, as it was at that moment.
SELECT pg_catalog.pg_logical_emit_message(true, 'thresher-slot', %s::text)
