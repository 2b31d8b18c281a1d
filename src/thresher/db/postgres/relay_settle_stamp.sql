-- Stamps rows whose fate a committed progress record holds as dispatched.
-- Index and matching as in relay_settle_delete. Repeating it changes nothing. Not IS NULL: it would let the planner take
-- the index of pending rows, which begins with the bucket.
UPDATE {table} o
   SET dispatched_time = pg_catalog.clock_timestamp()
 WHERE o.id = ANY (%(ids)s)
   AND greatest('0001-01-02', least('9999-12-30', o.create_time))
         = (%(create_times)s)[pg_catalog.width_bucket(o.id, %(ids)s)]
   AND num_nulls(o.dispatched_time) = 1
