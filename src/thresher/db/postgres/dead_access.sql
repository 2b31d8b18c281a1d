-- Where the dead rows of an outbox are, whether this session may read them itself, and which of our functions it may
-- call. A function counts only if its owner may read the table: a stranger's of the same name would run with the
-- caller's rights. Parameters: the dead-letter table's quoted name, the names of the functions. Index: the catalog's.
SELECT n.nspname, pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT p.proname::text FROM pg_catalog.pg_proc p
              WHERE p.pronamespace = n.oid AND p.proname = ANY (%(names)s) AND p.prosecdef
                AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
                AND pg_catalog.has_table_privilege(p.proowner, c.oid, 'SELECT'))
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = pg_catalog.to_regclass(%(dead)s)
