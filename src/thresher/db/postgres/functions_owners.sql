-- The roles with whose rights functions of these names in a schema run. Index: pg_proc_proname_args_nsp_index.
SELECT DISTINCT pg_catalog.pg_get_userbyid(p.proowner)::text
  FROM pg_catalog.pg_proc p
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = %(schema)s AND p.proname = ANY (%(names)s) AND p.prosecdef
 ORDER BY 1
