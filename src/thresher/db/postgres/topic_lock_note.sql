-- Notes topics that the cluster does not have, with the reasons. A note is a row without a slot: nobody can take it as a
-- lock, and it has no partition. `missing_at` keeps the time of the first note, from which the grace counts. Index:
-- topic. Fence: the control row's term. Deimos may have inserted the row already.
INSERT INTO {locks} AS l (topic, parts, token, error, retries, reason, locked_at, missing_at)
SELECT n.topic, 1, (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint, true, 1, n.reason,
       pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()), pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
  FROM unnest(%(topics)s::text[], %(reasons)s::text[]) AS n(topic, reason)
 WHERE EXISTS (SELECT FROM {control} c WHERE c.name = %(relay)s AND c.term = %(term)s::uuid)
 ORDER BY n.topic
    ON CONFLICT (topic) DO UPDATE SET error = true, retries = 1, reason = excluded.reason, missing_at = excluded.missing_at
 WHERE l.slot IS NULL AND l.parts = 1 AND l.missing_at IS NULL
