-- All of a shard's buckets, if any of them has a pending row: the poll of an idle shard. Executed as a bare prepared
-- statement, hence the `$1`. Index: the primary key, up to the shard's first row.
SELECT b.bucket FROM unnest($1::smallint[]) AS b(bucket)
 WHERE EXISTS (SELECT FROM {table}
                WHERE CASE WHEN partition_key IS NULL AND key IS NULL THEN id & 63
                           ELSE get_byte(sha256(coalesce(convert_to(partition_key, 'UTF8'), key)), 0) & 63
                           END = ANY ($1::smallint[]))
