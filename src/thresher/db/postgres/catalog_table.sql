-- A relation. Parameter: its oid. Names of other tables have their schema unless it is the catalog's.
SELECT c.oid, c.relkind::text, c.relpersistence::text, c.relrowsecurity OR c.relforcerowsecurity, c.reloptions,
       EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
       ARRAY(SELECT r.rulename::text FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid ORDER BY 1),
       ARRAY(SELECT t.tgname::text FROM pg_catalog.pg_trigger t
              WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' ORDER BY 1),
       ARRAY(SELECT k.conrelid::regclass::text FROM pg_catalog.pg_constraint k
              WHERE k.confrelid = c.oid AND k.contype = 'f' ORDER BY 1),
       ARRAY(SELECT k.conname::text FROM pg_catalog.pg_constraint k
              WHERE k.conrelid = c.oid AND k.contype IN ('c', 'x') ORDER BY 1),
       pg_catalog.current_setting('server_encoding')
  FROM pg_catalog.pg_class c
 WHERE c.oid = %s
