-- What waits in the shards of a pipeline, with the seconds since it was written, by the database's clock. Index: the
-- primary key.
SELECT w.topics, w.topic_seconds, w.ids, w.create_times, w.row_seconds,
       greatest(0, extract(epoch FROM pg_catalog.clock_timestamp() - w.written))::double precision
  FROM {table} w
 WHERE w.name = %(name)s AND w.written > pg_catalog.clock_timestamp() - %(seconds)s::double precision * interval '1 second'
