-- The next rows behind an id: how many of so many, the last one's id, and how many of them are due or were stamped since.
-- Index: the primary key. A short statement, so that its snapshot holds back no vacuum.
SELECT count(*), max(w.id),
       count(*) FILTER (WHERE w.dispatched_time < pg_catalog.now() - pg_catalog.make_interval(secs => %(seconds)s)),
       count(*) FILTER (WHERE w.dispatched_time >= pg_catalog.now() - pg_catalog.make_interval(secs => %(seconds)s))
  FROM (SELECT o.id, o.dispatched_time FROM {table} o WHERE o.id > %(after)s ORDER BY o.id LIMIT %(rows)s) w
