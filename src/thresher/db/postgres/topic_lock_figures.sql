-- The state of topics that have pending rows, a held lock or an error, the longest wait first. `{topics}` finds the
-- topics with pending rows; rows are counted up to `most`.
WITH RECURSIVE {topics}, known AS (
SELECT t.topic FROM t WHERE t.topic IS NOT NULL
UNION
SELECT pg_catalog.split_part(l.topic, '#', 1) FROM {locks} l WHERE l.error OR l.locked_by IS NOT NULL
)
SELECT k.topic, coalesce(w.pending, 0), coalesce(w.pending, 0) <= %(most)s,
       extract(epoch FROM pg_catalog.clock_timestamp() - w.oldest)::double precision,
       coalesce(s.locked, 0), coalesce(s.errored, 0), coalesce(s.parts, 1), coalesce(s.retries, 0), s.reason
  FROM known k
  LEFT JOIN LATERAL (
    SELECT count(*) AS pending, min(r.create_time) AS oldest
      FROM (SELECT {created} AS create_time FROM {table} i
             WHERE i.{topic} >= k.topic AND i.{topic} <= k.topic AND {waiting}
             ORDER BY i.{topic}, i.id LIMIT %(most)s + 1) r) w ON true
  LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE l.locked_by IS NOT NULL) AS locked, count(*) FILTER (WHERE l.error) AS errored,
           max(l.parts) AS parts, max(l.retries) AS retries, max(l.reason) FILTER (WHERE l.error) AS reason
      FROM {locks} l WHERE l.topic = k.topic OR pg_catalog.starts_with(l.topic, k.topic || '#')) s ON true
 ORDER BY w.oldest NULLS LAST, k.topic
 LIMIT %(topics)s
