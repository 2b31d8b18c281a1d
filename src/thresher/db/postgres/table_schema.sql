-- The schema in which a name is found, by the search_path if the name has no schema. Parameter: the quoted name. No
-- row: there is no such relation. The session may have a search_path with operators that others have planted.
SELECT n.nspname
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
 WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)::pg_catalog.oid
