-- One publication, and whether a table is in it; catalogs only. The filter is looked for by name: older servers have none.
SELECT p.pubinsert, t.tablename IS NOT NULL, pg_catalog.to_jsonb(t) ->> 'rowfilter'
  FROM pg_catalog.pg_publication p
  LEFT JOIN pg_catalog.pg_publication_tables t
    ON t.pubname = p.pubname AND t.schemaname = %(schema)s AND t.tablename = %(table)s
 WHERE p.pubname = %(name)s
