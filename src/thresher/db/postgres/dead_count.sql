-- How many rows are set aside, and how many of them keep others waiting.
SELECT count(*), count(*) FILTER (WHERE blocking) FROM {dead}
