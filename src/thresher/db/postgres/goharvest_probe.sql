-- All of a shard's buckets, if any of them has a pending row: the poll of an idle shard. Executed as a bare prepared
-- statement, hence the `$1`. Index: the primary key, up to the shard's first row.
SELECT b.bucket FROM unnest($1::smallint[]) AS b(bucket)
 WHERE EXISTS (SELECT FROM {table}
                WHERE (get_byte(sha256(convert_to(kafka_key, 'UTF8')), 0) & 63) = ANY ($1::smallint[]))
