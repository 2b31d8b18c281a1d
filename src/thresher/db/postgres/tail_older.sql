-- How many rows that a relay would send were written before the WAL was read without a gap, counted up to 10,001. Scan.
SELECT count(*)
  FROM (SELECT FROM {table} o
         WHERE pg_catalog.age(o.xmin) > pg_catalog.age(%(first_xid)s::xid8::xid){unstamped} LIMIT 10001) p
