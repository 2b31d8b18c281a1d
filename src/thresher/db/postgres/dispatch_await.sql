-- Waits until no dispatcher is sending rows of an outbox: until the transactions begun by dispatch_begin have ended.
-- Dispatchers that begin meanwhile are refused, so they do not prolong the wait.
SELECT pg_catalog.pg_advisory_xact_lock(
         pg_catalog.hashtextextended('thresher_dispatch', pg_catalog.to_regclass(%(outbox)s)::oid::bigint))
