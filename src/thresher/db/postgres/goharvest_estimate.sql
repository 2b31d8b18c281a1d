-- Rows by bucket, in a sample of the table's pages. Parameter: the sample, in percent.
SELECT get_byte(sha256(convert_to(kafka_key, 'UTF8')), 0) & 63, count(*)
  FROM {table} TABLESAMPLE SYSTEM (%s)
 GROUP BY 1
