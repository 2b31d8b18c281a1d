-- The planner's estimate of the rows, from the table's size as it is.
EXPLAIN (FORMAT JSON) SELECT FROM {table}
