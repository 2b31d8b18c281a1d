-- All pending rows of a shard with an id behind `last` up to `upto`, in no order: rows of other shards are not visited.
-- Index: (bucket, id) WHERE dispatched_time IS NULL, as a bitmap, so that each page is visited once. A result of `rows`
-- rows is incomplete, and nobody knows which are missing. `age` is how many transactions have begun since the one, or the
-- savepoint, that wrote the row; `horizon_age` is that of the transaction that `horizon` names. Counted modulo 2^32: the age
-- of a row that was frozen long ago may be negative.
{pick}
 LIMIT %(rows)s
