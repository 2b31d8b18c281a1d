-- Sets how this session's further statements find rows: by bitmap scan, which reads each page once, or in index order,
-- as other sessions do. Parameter: true for bitmap scans.
SELECT pg_catalog.set_config('enable_bitmapscan', (%(by_pages)s)::text, false),
       pg_catalog.set_config('enable_indexscan', (NOT %(by_pages)s)::text, false)
