-- Lets a slot begin at this position: nothing that was committed before is sent. Fence: nobody may read it meanwhile.
SELECT a.end_lsn::text FROM pg_catalog.pg_replication_slot_advance(%(slot)s, %(lsn)s::pg_lsn) a
