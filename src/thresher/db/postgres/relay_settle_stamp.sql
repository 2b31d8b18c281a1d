-- Stamps rows whose fate a committed progress record holds as dispatched.
-- Index: the primary key, whatever the statistics say: a table that is empty most of the time has those of an empty one,
-- and a join planned by them takes minutes; so the pairs are looked up in a hash, which NOT IN always makes. The create
-- time tells a row from another that came back under its id. Repeating it changes nothing. Not IS NULL: it would let
-- the planner take the index of pending rows, which begins with the bucket.
UPDATE {table} o
   SET dispatched_time = pg_catalog.clock_timestamp()
 WHERE o.id = ANY (%(ids)s)
   AND ((o.id, greatest('0001-01-02', least('9999-12-30', o.create_time))) NOT IN
         (SELECT f.id, f.create_time FROM unnest(%(ids)s, %(create_times)s) AS f(id, create_time))) IS FALSE
   AND num_nulls(o.dispatched_time) = 1
