-- The same by age alone, for a while where all buckets have many: rows lie in that order, and a page is looked at once.
-- Index: the primary key, from behind `last` on; rows of other shards are stepped over. In a session that may not sort.
-- `old` is a row whose transaction had ended before the one that `horizon` names began; that of a row which was frozen
-- long ago may count as new.
{pick}
 ORDER BY i.id
 LIMIT %(rows)s
