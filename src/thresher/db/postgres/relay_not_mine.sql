-- The condition for rows that this shard has not marked. Marks of other leaders do not count, whether these still run
-- or not: the term decides who may mark.
i.{mark} IS DISTINCT FROM {leader}
