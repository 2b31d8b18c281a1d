-- The archive's table and its partitions: kind, persistence, and whether it has rewrite rules. Index: the catalog's.
SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text,
       EXISTS (SELECT 1 FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid)
  FROM pg_catalog.pg_class c
 WHERE c.oid = pg_catalog.to_regclass(%(table)s)
    OR c.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(%(table)s)) t)
