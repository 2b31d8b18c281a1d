-- Pending rows by bucket among a sample of the table's pages. Parameter: the sample, in percent.
SELECT bucket, count(*) FROM {table} TABLESAMPLE SYSTEM (%s) WHERE dispatched_time IS NULL GROUP BY bucket
