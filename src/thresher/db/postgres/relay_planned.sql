-- How the session's statements find their rows from now on: by pages, which an index names and each of which is looked at
-- once; or in the order of an index, as those of other sessions do. Parameter: whether by pages.
SELECT pg_catalog.set_config('enable_bitmapscan', (%(by_pages)s)::text, false),
       pg_catalog.set_config('enable_indexscan', (NOT %(by_pages)s)::text, false)
