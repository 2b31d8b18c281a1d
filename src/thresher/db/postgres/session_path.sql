-- Sets the search_path for the rest of the transaction. Parameter: the path.
SELECT pg_catalog.set_config('search_path', %s, true)
