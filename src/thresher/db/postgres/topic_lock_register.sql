-- A lock's row, which Deimos may have made already. Of those that register, one is at work at a time: slots differ.
INSERT INTO {locks} AS l (topic, parts, slot)
VALUES (%(name)s, %(parts)s, CASE WHEN %(slotted)s THEN (SELECT coalesce(max(o.slot), -1) + 1 FROM {locks} o) END)
ON CONFLICT (topic) DO UPDATE SET parts = excluded.parts, slot = coalesce(l.slot, excluded.slot)
