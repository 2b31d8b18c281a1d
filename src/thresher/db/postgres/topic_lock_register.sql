-- Inserts a lock's row, which Deimos may have inserted already, or which notes that the topic was missing: it is there
-- now. The caller holds the outbox's lock for that, so that slots are unique. A token starts from the current time, so
-- that a row that was deleted and inserted again does not reuse tokens.
INSERT INTO {locks} AS l (topic, parts, slot, token)
VALUES (%(name)s, %(parts)s, CASE WHEN %(slotted)s THEN (SELECT coalesce(max(o.slot), -1) + 1 FROM {locks} o) END,
        (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint)
ON CONFLICT (topic) DO UPDATE SET parts = excluded.parts, slot = coalesce(l.slot, excluded.slot),
       error = l.error AND (l.slot IS NOT NULL OR l.missing_at IS NULL),
       retries = CASE WHEN l.slot IS NULL AND l.missing_at IS NOT NULL THEN 0 ELSE l.retries END,
       reason = CASE WHEN l.slot IS NOT NULL OR l.missing_at IS NULL THEN l.reason END,
       missing_at = CASE WHEN l.slot IS NOT NULL THEN l.missing_at END
