-- Replaces what is kept of the waits of a shard. Index: the primary key. Fence: the control row's term.
INSERT INTO {table} AS w (name, shard, topics, topic_seconds, ids, create_times, row_seconds, written)
SELECT %(name)s, %(shard)s::integer, %(topics)s::text[], %(topic_seconds)s::double precision[], %(ids)s::bigint[],
       %(create_times)s::bigint[], %(row_seconds)s::double precision[], pg_catalog.clock_timestamp()
 WHERE EXISTS (SELECT FROM {control} c WHERE c.name = %(name)s AND c.term = %(term)s::uuid)
ON CONFLICT (name, shard) DO UPDATE
   SET topics = excluded.topics, topic_seconds = excluded.topic_seconds, ids = excluded.ids,
       create_times = excluded.create_times, row_seconds = excluded.row_seconds, written = excluded.written
