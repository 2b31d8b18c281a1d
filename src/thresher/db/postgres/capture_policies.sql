-- Whether policies hide every row of a table from this session's role. Parameter: the quoted name. Index: the catalog's.
SELECT pg_catalog.row_security_active(c.oid)
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_policy p
                        WHERE p.polrelid = c.oid
                          AND EXISTS (SELECT FROM pg_catalog.unnest(p.polroles) AS r(role)
                                       WHERE r.role = 0 OR pg_catalog.pg_has_role(r.role, 'USAGE')))
  FROM pg_catalog.pg_class c
 WHERE c.oid = pg_catalog.to_regclass(%s)
