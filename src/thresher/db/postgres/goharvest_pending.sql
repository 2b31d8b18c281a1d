-- Pending rows by bucket, counted up to 10,001. Every row in the table is pending.
SELECT bucket, count(*)
  FROM (SELECT get_byte(sha256(convert_to(kafka_key, 'UTF8')), 0) & 63 AS bucket FROM {table} LIMIT 10001) p
 GROUP BY bucket
