-- Takes a lock: one that is free and not errored, or that has run out, by the database's clock. Index: topic. Fence: the
-- control row's term. A lock that is being taken by somebody else is left to them. An errored one without a time, as Deimos
-- leaves it, has run out.
UPDATE {locks} l
   SET locked_by = %(owner)s, locked_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()), error = false,
       token = l.token + 1
  FROM (SELECT k.id, k.missing_at, k.waiting_at FROM {locks} k
         WHERE k.topic = %(name)s AND k.slot IS NOT NULL AND k.parts = %(parts)s
           AND (k.locked_by IS NULL AND NOT k.error
                OR coalesce(k.locked_at < pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
                                          - %(seconds)s::double precision * interval '1 second', true))
           AND EXISTS (SELECT FROM {control} c WHERE c.name = %(relay)s AND c.term = %(term)s::uuid)
           FOR UPDATE OF k SKIP LOCKED) f
 WHERE l.id = f.id
RETURNING l.token, l.slot, l.retries,
          extract(epoch FROM pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()) - f.missing_at)::double precision,
          extract(epoch FROM pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()) - f.waiting_at)::double precision
