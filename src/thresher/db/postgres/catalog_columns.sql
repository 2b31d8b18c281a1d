-- The columns of a relation, with domains resolved to their base types. Parameter: the relation's oid. The default of a
-- column is an expression; that of a generated column is its formula.
SELECT a.attname,
       CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) ELSE format_type(a.atttypid, a.atttypmod) END,
       a.attnotnull OR t.typnotnull, a.attidentity::text, a.attgenerated::text,
       coalesce(pg_get_expr(d.adbin, d.adrelid), t.typdefault)
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
