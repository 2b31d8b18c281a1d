-- Which rows of the head are not claimed: those that the shard does not have in flight. In a hash, whatever their number.
-- And only while the table's file is the one that those were read from: in one that was truncated meanwhile, other rows
-- may have their ids. Asked once for a statement, when the table is locked and its snapshot is taken.
i.id NOT IN (SELECT unnest(%(in_flight)s::bigint[]))
   AND (SELECT pg_catalog.pg_relation_filenode(%(outbox)s::regclass) IS NOT DISTINCT FROM %(file)s::oid)
