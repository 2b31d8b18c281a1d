-- From now on the session's statements find their rows by pages: an index names them, and each page is looked at once.
SELECT pg_catalog.set_config('enable_bitmapscan', 'on', false), pg_catalog.set_config('enable_indexscan', 'off', false)
