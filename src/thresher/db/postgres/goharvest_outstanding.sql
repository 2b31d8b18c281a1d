-- How many rows wait, counted up to `most`: every row in the table is pending. No index; nothing is locked.
SELECT pg_catalog.count(*) FROM (SELECT FROM {table} LIMIT %(most)s) p
