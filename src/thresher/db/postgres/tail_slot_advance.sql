-- Advances a slot to a position: nothing that was committed before it is sent. Fence: the server refuses while the slot
-- is in use.
SELECT a.end_lsn::text FROM pg_catalog.pg_replication_slot_advance(%(slot)s, %(lsn)s::pg_lsn) a
