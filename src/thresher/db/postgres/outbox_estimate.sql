-- Pending rows by bucket, in a sample of the table's pages. Parameter: the sample, in percent.
SELECT bucket, count(*) FROM {table} TABLESAMPLE SYSTEM (%s) WHERE dispatched_time IS NULL GROUP BY bucket
