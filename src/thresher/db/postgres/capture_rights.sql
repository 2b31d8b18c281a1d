-- The rights on a table that this session's role lacks, of those that are asked for. Parameters: the rights, the quoted name.
SELECT r.name, current_user::text
  FROM pg_catalog.unnest(%s::text[]) AS r(name)
 WHERE NOT pg_catalog.has_table_privilege(pg_catalog.to_regclass(%s), r.name)
