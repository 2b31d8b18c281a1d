-- How many messages wait, counted up to `most`.
SELECT pg_catalog.count(*) FROM (SELECT FROM {table} LIMIT %(most)s) p
