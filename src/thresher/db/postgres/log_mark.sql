-- Writes a mark to the WAL after a slot was created. A reader of the slot that meets the mark knows that all later
-- transactions are in the slot's stream. The content names the publication as it was at that moment.
SELECT pg_catalog.pg_logical_emit_message(true, 'thresher-slot', %s::text)
