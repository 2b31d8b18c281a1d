-- Which rows of the head are not claimed: those that the shard does not have in flight. In a hash, whatever their number.
i.id NOT IN (SELECT unnest(%(in_flight)s::bigint[]))
