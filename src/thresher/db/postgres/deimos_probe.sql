-- All of a shard's buckets if any of them has anything pending, for idle looks: prepared once and executed bare, so its
-- parameter is the protocol's own. Index: the primary key, up to the first row of ours.
SELECT b.bucket FROM unnest($1::smallint[]) AS b(bucket)
 WHERE EXISTS (SELECT FROM {table}
                WHERE CASE WHEN partition_key IS NULL AND key IS NULL THEN id & 63
                           ELSE get_byte(sha256(coalesce(convert_to(partition_key, 'UTF8'), key)), 0) & 63
                           END = ANY ($1::smallint[]))
