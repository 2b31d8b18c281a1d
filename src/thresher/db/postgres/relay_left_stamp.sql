-- How many settled rows are still pending, because a trigger, rule or policy kept them. Index: as in
-- relay_settle_stamp.
SELECT count(*)
  FROM {table} o
 WHERE o.id = ANY (%(ids)s)
   AND greatest('0001-01-02', least('9999-12-30', o.create_time))
         = (%(create_times)s)[pg_catalog.width_bucket(o.id, %(ids)s)]
   AND num_nulls(o.dispatched_time) = 1
