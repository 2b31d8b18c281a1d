-- The schemas that have a table of one of these names. Parameter: the names. Index: the catalog's, by name.
SELECT DISTINCT n.nspname::text
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = ANY (%s::pg_catalog.name[]) AND c.relkind = 'r' AND n.nspname NOT LIKE 'pg\_%%'
 ORDER BY 1
