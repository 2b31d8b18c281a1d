-- How many rows of a batch are still in the outbox. Index: the primary key.
SELECT count(*)
  FROM {batches} b
 CROSS JOIN LATERAL unnest(b.ids, b.create_times) AS n(id, create_time)
  JOIN {table} o ON o.id = n.id
 WHERE b.batch = %(batch)s AND o.create_time = n.create_time
