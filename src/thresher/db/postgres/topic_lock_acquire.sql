-- Takes a lock that is free without an error, or has expired, by the database's clock. Index: topic. Fence: the control
-- row's term. A lock that another process is taking at the moment is skipped. A lock with an error and no time, as
-- Deimos leaves it, has expired.
UPDATE {locks} l
   SET locked_by = %(owner)s, locked_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()), error = false,
       token = l.token + 1
  FROM (SELECT k.id, k.missing_at, k.waiting_at, k.waiting_id FROM {locks} k
         WHERE k.topic = %(name)s AND k.slot IS NOT NULL AND k.parts = %(parts)s
           AND (k.locked_by IS NULL AND NOT k.error
                OR coalesce(k.locked_at < pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
                                          - %(seconds)s::double precision * interval '1 second', true))
           AND EXISTS (SELECT FROM {control} c WHERE c.name = %(relay)s AND c.term = %(term)s::uuid)
           FOR UPDATE OF k SKIP LOCKED) f
 WHERE l.id = f.id
RETURNING l.token, l.slot, l.retries,
          extract(epoch FROM pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()) - f.missing_at)::double precision,
          extract(epoch FROM pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()) - f.waiting_at)::double precision,
          f.waiting_id
