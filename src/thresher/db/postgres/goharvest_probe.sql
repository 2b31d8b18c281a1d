-- Whether a shard has anything pending at all, for idle looks: prepared once and executed bare, so its parameter is the
-- protocol's own. Index: the primary key, up to the first row of ours.
SELECT FROM {table} WHERE (get_byte(sha256(convert_to(kafka_key, 'UTF8')), 0) & 63) = ANY ($1::smallint[]) LIMIT 1
