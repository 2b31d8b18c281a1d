-- The planner's estimate of the pending rows, from the table's size as it is.
EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE dispatched_time IS NULL
