-- The next rows after an id, at most `rows` of them: their number, the last id, how many are due, and how many were
-- stamped too recently. Index: the primary key. The statement is short, so that its snapshot does not hold back vacuum.
SELECT count(*), max(w.id),
       count(*) FILTER (WHERE w.dispatched_time < pg_catalog.now() - pg_catalog.make_interval(secs => %(seconds)s)),
       count(*) FILTER (WHERE w.dispatched_time >= pg_catalog.now() - pg_catalog.make_interval(secs => %(seconds)s))
  FROM (SELECT o.id, o.dispatched_time FROM {table} o WHERE o.id > %(after)s ORDER BY o.id LIMIT %(rows)s) w
