-- Whether the table has TOASTed content: then a batch of many rows may be large. Parameter: the quoted name.
SELECT coalesce(pg_catalog.pg_relation_size(nullif(c.reltoastrelid, 0)), 0) > 0
  FROM pg_catalog.pg_class c
 WHERE c.oid = pg_catalog.to_regclass(%s)
