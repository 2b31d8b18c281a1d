-- Stamps rows whose fate a committed progress record holds as dispatched.
-- Index: the primary key, once for each row, whatever the statistics say: a table that is empty most of the time has
-- statistics of an empty one, and a join planned by them takes minutes. The create time tells a row from another that
-- came back under its id. Repeating it changes nothing.
UPDATE {table} o
   SET dispatched_time = pg_catalog.clock_timestamp()
 WHERE o.ctid = ANY (ARRAY(
         SELECT (SELECT i.ctid FROM {table} i WHERE i.id = f.id AND greatest('0001-01-02', least('9999-12-30', i.create_time)) = f.create_time)
           FROM unnest(%s::bigint[], %s::timestamptz[]) AS f(id, create_time)))
   AND o.dispatched_time IS NULL
