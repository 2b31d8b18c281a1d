-- The locks of all topics with pending rows, and whether each may be taken: it is free without an error, or has been
-- held or in error for too long. Then: whether it has failed since it was last released, or rows of it wait; for how
-- long the topic has been missing, and why. `{topics}` finds the topics; the names of locks are those of `lock_name`. A
-- topic without a lock has one row here, without a token of a lock. If it was noted as missing, the last column has the
-- token of that note.
WITH RECURSIVE {topics}
SELECT t.topic, coalesce(p.part, 0), coalesce(m.parts, 1), l.token,
       coalesce(l.locked_by IS NULL AND NOT l.error, true)
         OR coalesce(l.locked_at < pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
                                   - %(seconds)s::double precision * interval '1 second', true),
       coalesce(l.error OR l.retries > 0 OR l.waiting_at IS NOT NULL, false),
       extract(epoch FROM pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
                          - CASE WHEN m.topic IS NULL THEN n.missing_at ELSE l.missing_at END)::double precision,
       CASE WHEN m.topic IS NULL THEN n.reason ELSE l.reason END,
       CASE WHEN m.topic IS NULL AND n.missing_at IS NOT NULL THEN n.token END
  FROM t
  LEFT JOIN {locks} n ON n.topic = CASE WHEN t.topic ~ '#|^!' THEN '!' || t.topic ELSE t.topic END
  LEFT JOIN LATERAL (SELECT n.topic, n.parts WHERE n.slot IS NOT NULL OR n.parts > 1) m ON true
 CROSS JOIN LATERAL pg_catalog.generate_series(0, coalesce(m.parts, 1) - 1) AS p(part)
  LEFT JOIN {locks} l ON l.topic = CASE WHEN m.parts > 1 THEN m.topic || '#' || p.part ELSE m.topic END
 WHERE t.topic IS NOT NULL
