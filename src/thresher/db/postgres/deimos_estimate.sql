-- Rows by bucket, in a sample of the table's pages. Parameter: the sample, in percent.
SELECT CASE WHEN partition_key IS NULL AND key IS NULL THEN id & 63
            ELSE get_byte(sha256(coalesce(convert_to(partition_key, 'UTF8'), key)), 0) & 63
            END, count(*)
  FROM {table} TABLESAMPLE SYSTEM (%s)
 GROUP BY 1
