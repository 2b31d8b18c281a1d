-- How many rows a relay would still send, up to a number. Scan: of a table that should be empty.
SELECT count(*) FROM (SELECT FROM {table} o WHERE true{unstamped} LIMIT 10001) p
