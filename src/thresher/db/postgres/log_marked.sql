-- The note beside a publication, and whether this session may write one. Reads catalogs only, by their indexes.
SELECT pg_catalog.obj_description(p.oid, 'pg_publication'), pg_catalog.pg_has_role(p.pubowner, 'USAGE')
  FROM pg_catalog.pg_publication p
 WHERE p.pubname = %s
