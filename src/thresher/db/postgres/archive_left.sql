-- How many rows of a batch are still in the outbox; and how many of them are as the manifest says and in the file, so
-- that only a trigger, a rule or a policy can have kept them. Index: the primary key.
SELECT count(*),
       count(*) FILTER (WHERE o.xmin::text::bigint = n.version AND num_nonnulls(o.dispatched_time) = 1
                          AND o.id <> ALL (%(absent)s::bigint[]))
  FROM {batches} b
 CROSS JOIN LATERAL unnest(b.ids, b.create_times, b.versions) AS n(id, create_time, version)
  JOIN {table} o ON o.id = n.id
 WHERE b.batch = %(batch)s AND o.create_time = n.create_time
