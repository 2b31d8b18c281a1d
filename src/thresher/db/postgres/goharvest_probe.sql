-- All of a shard's buckets if any of them has anything pending, for idle looks: prepared once and executed bare, so its
-- parameter is the protocol's own. Index: the primary key, up to the first row of ours.
SELECT b.bucket FROM unnest($1::smallint[]) AS b(bucket)
 WHERE EXISTS (SELECT FROM {table}
                WHERE (get_byte(sha256(convert_to(kafka_key, 'UTF8')), 0) & 63) = ANY ($1::smallint[]))
