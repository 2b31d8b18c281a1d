-- Which rows of the head the shard has not marked. A mark of anybody else, dead or alive, does not count: who may mark is
-- said by the term.
i.{mark} IS DISTINCT FROM {leader}
