-- What kind of relation a name resolves to, by the same search_path that the writer's statements see.
-- Parameter: the quoted name. No row: no such relation.
SELECT c.oid, c.relkind::text, c.relpersistence::text, c.relrowsecurity, c.relforcerowsecurity, c.reloptions
  FROM pg_catalog.pg_class c
 WHERE c.oid = to_regclass(%s)
