-- How many messages wait, counted up to `most`.
SELECT count(*) FROM (SELECT FROM {table} LIMIT %(most)s) p
