-- The locks of all topics with pending rows, and whether each may be taken: it is free without an error, or has been
-- held or in error for too long. The last column: whether it has failed since it was last released, or rows of it wait.
-- `{topics}` finds the topics; the names of locks are those of `lock_name`. A topic that was never locked has one row
-- here, without a token.
WITH RECURSIVE {topics}
SELECT t.topic, coalesce(p.part, 0), coalesce(m.parts, 1), l.token,
       coalesce(l.locked_by IS NULL AND NOT l.error, true)
         OR coalesce(l.locked_at < pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
                                   - %(seconds)s::double precision * interval '1 second', true),
       coalesce(l.error OR l.retries > 0 OR l.waiting_at IS NOT NULL, false)
  FROM t
  LEFT JOIN {locks} m ON m.topic = CASE WHEN t.topic ~ '#|^!' THEN '!' || t.topic ELSE t.topic END
                     AND (m.slot IS NOT NULL OR m.parts > 1)
 CROSS JOIN LATERAL pg_catalog.generate_series(0, coalesce(m.parts, 1) - 1) AS p(part)
  LEFT JOIN {locks} l ON l.topic = CASE WHEN m.parts > 1 THEN m.topic || '#' || p.part ELSE m.topic END
 WHERE t.topic IS NOT NULL
