-- How many pages the table has. Parameter: the quoted name.
SELECT pg_catalog.pg_relation_size(pg_catalog.to_regclass(%s)) / current_setting('block_size')::bigint
