-- Rows that were stamped long enough ago, by the database's clock. Index: the primary key, between two ids. A pending
-- row has no dispatched time, so it is never due.
SELECT o.id, o.create_time, o.xmin::text::bigint AS version
  FROM {table} o
 WHERE o.id > %(after)s AND o.id <= %(last)s
   AND o.dispatched_time < pg_catalog.now() - pg_catalog.make_interval(secs => %(seconds)s)
 ORDER BY o.id
 LIMIT %(rows)s
