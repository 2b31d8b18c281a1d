-- The rows of a batch for its file, by id; none if the attempt is not the batch's current one. Index: the primary key.
-- Rows are matched by id, create time and version: a changed row, or another row with a reused id, is not in the file.
SELECT {expressions}
  FROM {batches} b
 CROSS JOIN LATERAL unnest(b.ids, b.create_times, b.versions) AS n(id, create_time, version)
  JOIN {table} o ON o.id = n.id
 WHERE b.batch = %(batch)s AND b.attempt = %(attempt)s AND b.finish_time IS NULL
   AND o.create_time = n.create_time AND o.xmin::text::bigint = n.version
 ORDER BY o.id
