-- How many rows were stamped long enough ago. No index: a scan of the whole table.
SELECT count(*)
  FROM {table} o
 WHERE o.dispatched_time < pg_catalog.now() - pg_catalog.make_interval(secs => %(seconds)s)
