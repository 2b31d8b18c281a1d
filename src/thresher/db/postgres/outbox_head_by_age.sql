-- The same by age alone, for a while where all buckets have many: rows lie in that order, and a page is looked at once.
-- Index: the primary key; rows of other shards are stepped over. In a session that may not sort.
{pick}
 ORDER BY i.id
 LIMIT %(rows)s
