-- Removes the rows of a batch from the outbox, in the transaction that holds the manifest's lock. Index: the primary
-- key. Rows are matched by id, create time and version: a row that was changed after the manifest was written stays. A
-- row that is not in the file (`absent`) stays too.
DELETE FROM {table} o
 USING (SELECT n.*
          FROM {batches} b
         CROSS JOIN LATERAL unnest(b.ids, b.create_times, b.versions) AS n(id, create_time, version)
         WHERE b.batch = %(batch)s) n
 WHERE o.id = n.id AND o.create_time = n.create_time AND o.xmin::text::bigint = n.version
   AND num_nonnulls(o.dispatched_time) = 1
   AND o.id <> ALL (%(absent)s::bigint[])
