-- How many rows wait, counted no further than to `most`: every row that is there does. No index; nothing is locked.
SELECT count(*) FROM (SELECT FROM {table} LIMIT %(most)s) p
