-- The usable B-tree indexes of a relation: columns in order, unique or not, a partial index's predicate, and whether
-- uniqueness is checked immediately. Parameter: the relation's oid. An indexed expression has a NULL column name.
SELECT array_agg(a.attname::text ORDER BY k.position), i.indisunique, pg_get_expr(i.indpred, i.indrelid),
       i.indimmediate
  FROM pg_catalog.pg_index i
 CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(attnum, position)
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_am m ON m.oid = c.relam AND m.amname = 'btree'
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum <> 0
 WHERE i.indrelid = %s AND i.indisvalid AND i.indisready AND k.position <= i.indnkeyatts
 GROUP BY i.indexrelid, i.indisunique, i.indpred, i.indrelid, i.indimmediate
