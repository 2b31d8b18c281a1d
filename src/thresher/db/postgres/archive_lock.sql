-- Makes this session the only archiver of an outbox in this database; false if another session is. The lock is freed
-- when the session ends.
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('thresher archive ' || %s, 0))
