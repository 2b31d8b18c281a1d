-- All pending rows of a shard with ids in (`last`, `upto`], unordered; rows of other shards are not read. Index:
-- (bucket, id) WHERE dispatched_time IS NULL, as a bitmap scan, so that each page is read once. A result of `rows` rows
-- is incomplete, and any of the rows may be missing. `age` is the number of transactions begun since the transaction or
-- subtransaction that wrote the row; `oldest_age` is the same for the transaction `oldest_transaction`. Both are counted
-- modulo 2^32: the age of a row that was frozen long ago may be negative.
{pick}
 LIMIT %(rows)s
