-- The schema in which a name is found, by the search_path where it has none. Parameter: the quoted name.
-- No row: no such relation.
SELECT n.nspname
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = pg_catalog.to_regclass(%s)
