-- Stamps rows as dispatched whose fate is in a committed progress record. Idempotent. Index and matching: as in
-- relay_settle_delete. num_nulls instead of IS NULL: otherwise the planner might choose the index of pending rows,
-- which begins with the bucket.
UPDATE {table} o
   SET dispatched_time = pg_catalog.clock_timestamp()
 WHERE o.id = ANY (%(ids)s)
   AND greatest('0001-01-02', least('9999-12-30', o.create_time))
         = (%(create_times)s)[pg_catalog.width_bucket(o.id, %(ids)s)]
   AND num_nulls(o.dispatched_time) = 1
