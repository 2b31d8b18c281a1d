-- The control table beside an outbox, if this session may read it. Parameters: the quoted name, the control table's name.
SELECT n.nspname, c.oid IS NOT NULL AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
  FROM pg_catalog.pg_class o
  JOIN pg_catalog.pg_namespace n ON n.oid = o.relnamespace
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = %s
 WHERE o.oid = pg_catalog.to_regclass(%s)
