-- From now on the session's statements find their rows in the order of an index, as those of other sessions do.
SELECT pg_catalog.set_config('enable_bitmapscan', 'off', false), pg_catalog.set_config('enable_indexscan', 'on', false)
