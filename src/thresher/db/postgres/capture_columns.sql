-- The columns of an entity's table: the type to cast to, whether it is an array, whether it is generated, whether it is
-- an identity that takes no value, and the operator by which its indexes compare, which may be an extension's. Parameter:
-- the quoted name. The type has no modifier: an explicit cast to varchar(5) would truncate a text that an assignment
-- refuses. A domain is cast to its base type; the assignment checks the domain's constraints.
SELECT a.attname::text, pg_catalog.format_type(t.oid, -1), t.typcategory = 'A', a.attgenerated <> '',
       a.attidentity = 'a',
       coalesce((SELECT pg_catalog.format('%%I.%%s', n.nspname, o.oprname)
                   FROM pg_catalog.pg_opclass c
                   JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
                   JOIN pg_catalog.pg_amop e ON e.amopfamily = c.opcfamily AND e.amopstrategy = 3
                    AND e.amoplefttype = c.opcintype AND e.amoprighttype = c.opcintype
                   JOIN pg_catalog.pg_operator o ON o.oid = e.amopopr
                   JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
                  WHERE c.opcdefault AND c.opcintype = t.oid), 'pg_catalog.=')
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type d ON d.oid = a.atttypid
  JOIN pg_catalog.pg_type t ON t.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype ELSE d.oid END
 WHERE a.attrelid = pg_catalog.to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
