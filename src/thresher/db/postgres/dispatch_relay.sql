-- The control table next to an outbox: whether it exists, and whether this session may read the columns that
-- dispatch_mode reads. Index: the catalog's. Parameters: the control table's name, the outbox's quoted name.
SELECT n.nspname, c.oid IS NOT NULL,
       coalesce((SELECT bool_and(pg_catalog.has_column_privilege(c.oid, a.name, 'SELECT'))
                   FROM unnest(ARRAY['name', 'outbox', 'mode']) AS a(name) WHERE c.oid IS NOT NULL), false)
  FROM pg_catalog.pg_class o
  JOIN pg_catalog.pg_namespace n ON n.oid = o.relnamespace
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = %s
 WHERE o.oid = pg_catalog.to_regclass(%s)
