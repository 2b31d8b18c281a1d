-- How many rows are dead, and how many of them block their key.
SELECT count(*), count(*) FILTER (WHERE blocking) FROM {dead}
