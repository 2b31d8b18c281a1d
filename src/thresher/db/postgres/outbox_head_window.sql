-- All rows by age from behind `last` up to `upto`, in no order: of what other shards have among them, nothing is looked
-- at. Index: (bucket, id) WHERE dispatched_time IS NULL, in a session that goes by pages. One that gives as many as it may
-- has left some out, and nobody knows which. `old` is a row whose transaction had ended before the one that `horizon`
-- names began; that of a row which was frozen long ago may count as new.
{pick}
 LIMIT %(rows)s
