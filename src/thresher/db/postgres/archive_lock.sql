-- Makes this session the only archiver of an outbox in this database; false where another session is. Freed with the session.
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('thresher archive ' || %s, 0))
