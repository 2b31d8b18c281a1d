-- The control table next to an outbox: whether it exists; whether this session may read the columns that dispatch_mode
-- reads, of every row; and whether it may call the function that reads them. A function counts only if its owner may
-- read the columns: a stranger's of the same name would run with the caller's rights. Index: the catalog's.
SELECT n.nspname, c.oid IS NOT NULL,
       coalesce(NOT pg_catalog.row_security_active(c.oid)
                AND (SELECT pg_catalog.bool_and(pg_catalog.has_column_privilege(c.oid, a.name, 'SELECT'))
                       FROM pg_catalog.unnest(ARRAY['name', 'outbox', 'mode']) AS a(name)), false),
       EXISTS (SELECT FROM pg_catalog.pg_proc p
                WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proname OPERATOR(pg_catalog.=) %(function)s
                  AND p.pronargs OPERATOR(pg_catalog.=) 0 AND p.prosecdef
                  AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
                  AND pg_catalog.has_column_privilege(p.proowner, c.oid, 'mode', 'SELECT'))
  FROM pg_catalog.pg_class o
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) o.relnamespace
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relname OPERATOR(pg_catalog.=) %(control)s
 WHERE o.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%(outbox)s)::pg_catalog.oid
