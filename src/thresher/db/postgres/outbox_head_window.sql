-- All pending rows of a shard with an id behind `last` up to `upto`, in no order: rows of other shards are not visited.
-- Index: (bucket, id) WHERE dispatched_time IS NULL, as a bitmap, so that each page is visited once. A result of `rows`
-- rows is incomplete, and nobody knows which are missing. `old` is a row whose transaction had ended before the one that
-- `horizon` names began; a row that was frozen long ago may count as new.
{pick}
 LIMIT %(rows)s
