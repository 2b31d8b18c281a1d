-- The function that writes messages to the WAL, its keys, and who may use the server's own functions instead. The
-- function itself uses the one for bytea. Reads catalogs only.
WITH server AS (
  SELECT p.oid, p.oid::regprocedure::text AS name, p.proargtypes[2] = 'pg_catalog.bytea'::regtype AS used
    FROM pg_catalog.pg_proc p
   WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
)
SELECT p.oid IS NOT NULL AND o.keys IS NOT NULL, coalesce(p.prosecdef, false), pg_catalog.pg_get_userbyid(p.proowner)::text,
       coalesce(pg_catalog.has_function_privilege('public', p.oid, 'EXECUTE'), false),
       coalesce(pg_catalog.has_table_privilege('public', o.keys, 'SELECT'), false),
       coalesce(pg_catalog.has_table_privilege(o.keys, 'SELECT'), false),
       (SELECT coalesce(pg_catalog.bool_and(pg_catalog.has_function_privilege(p.proowner, s.oid, 'EXECUTE')), false) FROM server s WHERE s.used),
       (SELECT pg_catalog.bool_or(pg_catalog.has_function_privilege('public', s.oid, 'EXECUTE')) FROM server s),
       (SELECT pg_catalog.array_agg(s.name ORDER BY s.name) FROM server s),
       session_user::text,
       (SELECT pg_catalog.pg_get_userbyid(c.relowner)::text FROM pg_catalog.pg_class c WHERE c.oid = o.keys)
  FROM (SELECT pg_catalog.to_regprocedure(%(emit)s || '(bytea)')::oid AS emit,
               pg_catalog.to_regclass(%(keys)s)::oid AS keys) o
  LEFT JOIN pg_catalog.pg_proc p ON p.oid = o.emit
