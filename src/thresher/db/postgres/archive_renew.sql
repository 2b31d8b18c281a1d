-- Begins another attempt at a batch, with those of its rows that were not changed or removed since the manifest was
-- written. Fence: archive_hold runs first in the same transaction. Index: the primary keys.
UPDATE {batches} b
   SET attempt = b.attempt + 1, ids = kept.ids, create_times = kept.create_times, versions = kept.versions
  FROM (SELECT coalesce(array_agg(n.id ORDER BY n.id), '{}') AS ids,
               coalesce(array_agg(n.create_time ORDER BY n.id), '{}') AS create_times,
               coalesce(array_agg(n.version ORDER BY n.id), '{}') AS versions
          FROM {batches} m
         CROSS JOIN LATERAL unnest(m.ids, m.create_times, m.versions) AS n(id, create_time, version)
          JOIN {table} o ON o.id = n.id
         WHERE m.batch = %(batch)s
           AND o.create_time = n.create_time AND o.xmin::text::bigint = n.version
           AND num_nonnulls(o.dispatched_time) = 1) kept
 WHERE b.batch = %(batch)s
