-- Pending rows by bucket, counted up to 10,001. Every row in the table is pending.
SELECT bucket, count(*)
  FROM (SELECT CASE WHEN partition_key IS NULL AND key IS NULL THEN id & 63
                    ELSE get_byte(sha256(coalesce(convert_to(partition_key, 'UTF8'), key)), 0) & 63
                    END AS bucket
          FROM {table} LIMIT 10001) p
 GROUP BY bucket
