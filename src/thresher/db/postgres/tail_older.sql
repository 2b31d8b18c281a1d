-- How many rows a relay would send that were written before the log was read without a gap, up to a number. Scan.
SELECT count(*)
  FROM (SELECT FROM {table} o
         WHERE pg_catalog.age(o.xmin) > pg_catalog.age(%(first_xid)s::xid8::xid){unstamped} LIMIT 10001) p
