-- How many rows that were settled are still pending, because something keeps them so. Index as in relay_settle_stamp.
SELECT count(*)
  FROM {table} o
 WHERE o.id = ANY (%(ids)s)
   AND ((o.id, greatest('0001-01-02', least('9999-12-30', o.create_time))) NOT IN
         (SELECT f.id, f.create_time FROM unnest(%(ids)s, %(create_times)s) AS f(id, create_time))) IS FALSE
   AND num_nulls(o.dispatched_time) = 1
