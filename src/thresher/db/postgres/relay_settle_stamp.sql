-- Stamps rows whose fate a committed progress record holds as dispatched. Index: the primary key. The create time tells
-- a row from another that came back under its id. Repeating it changes nothing.
UPDATE {table} o
   SET dispatched_time = pg_catalog.clock_timestamp()
  FROM unnest(%s::bigint[], %s::timestamptz[]) AS f(id, create_time)
 WHERE o.id = f.id AND o.create_time = f.create_time AND o.dispatched_time IS NULL
