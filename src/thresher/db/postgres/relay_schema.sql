-- The schema in which a name is found by the session's search_path. Parameter: the quoted name. No row: no such table.
SELECT n.nspname
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = pg_catalog.to_regclass(%s)
