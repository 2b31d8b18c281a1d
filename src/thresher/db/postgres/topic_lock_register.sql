-- A lock's row, which Deimos may have made already. Of those that register, one is at work at a time: slots differ. Tokens
-- begin with the time: one that a row had which somebody has removed does not come back.
INSERT INTO {locks} AS l (topic, parts, slot, token)
VALUES (%(name)s, %(parts)s, CASE WHEN %(slotted)s THEN (SELECT coalesce(max(o.slot), -1) + 1 FROM {locks} o) END,
        (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint)
ON CONFLICT (topic) DO UPDATE SET parts = excluded.parts, slot = coalesce(l.slot, excluded.slot)
