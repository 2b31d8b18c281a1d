-- How many rows a relay would still send, counted up to 10,001. Scan of a table that should be empty.
SELECT count(*) FROM (SELECT FROM {table} o WHERE true{unstamped} LIMIT 10001) p
