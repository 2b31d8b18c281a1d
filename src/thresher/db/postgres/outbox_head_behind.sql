-- The head where all up to `last` was met by age: what has come late among that, then each bucket from there on. As a
-- read of each bucket from its beginning, but for the order: entries of rows that are gone are stepped over where they
-- lie together. Indexes: the primary key for `{late}`, which is the first part; `{head}` goes by its own.
SELECT * FROM (
{late}
 ORDER BY i.id
 LIMIT %(rows)s) l
UNION ALL
SELECT * FROM (
{head}
) h
 LIMIT %(rows)s
