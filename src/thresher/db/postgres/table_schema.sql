-- The schema in which a name is found, by the search_path if the name has no schema. Parameter: the quoted name. No
-- row: there is no such relation.
SELECT n.nspname
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = pg_catalog.to_regclass(%s)
