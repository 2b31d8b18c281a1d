-- Waits until no dispatcher sends rows of an outbox: for the transactions of dispatch_begin that are under way. Those that
-- begin meanwhile are refused, and do not prolong it.
SELECT pg_catalog.pg_advisory_xact_lock(
         pg_catalog.hashtextextended('thresher_dispatch', pg_catalog.to_regclass(%(outbox)s)::oid::bigint))
