-- How many messages wait, counted up to a bound.
SELECT count(*) FROM (SELECT FROM {table} LIMIT %(most)s) p
