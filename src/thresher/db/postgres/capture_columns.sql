-- The columns of an entity's table: the type to cast to, whether it is an array, whether it is generated, and whether
-- it is an identity that takes no value. Parameter: the quoted name. The type has no modifier: an explicit cast to
-- varchar(5) would truncate a text that an assignment refuses. A domain is cast to its base type; the assignment checks
-- the domain's constraints.
SELECT a.attname::text, pg_catalog.format_type(t.oid, -1), t.typcategory = 'A', a.attgenerated <> '',
       a.attidentity = 'a'
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type d ON d.oid = a.atttypid
  JOIN pg_catalog.pg_type t ON t.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype ELSE d.oid END
 WHERE a.attrelid = pg_catalog.to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
