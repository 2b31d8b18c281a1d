-- Which of the requested privileges on a table this session's role lacks. Parameters: the privileges, the quoted name.
SELECT r.name, current_user::text
  FROM pg_catalog.unnest(%s::text[]) AS r(name)
 WHERE NOT pg_catalog.has_table_privilege(pg_catalog.to_regclass(%s), r.name)
