-- One publication, and whether it includes a table. Reads catalogs only. The row filter is read by name, because older
-- servers do not have that column.
SELECT p.pubinsert, t.tablename IS NOT NULL, pg_catalog.to_jsonb(t) ->> 'rowfilter'
  FROM pg_catalog.pg_publication p
  LEFT JOIN pg_catalog.pg_publication_tables t
    ON t.pubname = p.pubname AND t.schemaname = %(schema)s AND t.tablename = %(table)s
 WHERE p.pubname = %(name)s
