-- How many settled rows are still pending, because a trigger, rule or policy kept them. Index: as in
-- relay_settle_delete.
SELECT count(*)
  FROM {table} o
 WHERE o.id = ANY (%(ids)s)
   AND greatest('0001-01-02', least('9999-12-30', {created}))
         = (%(create_times)s)[pg_catalog.width_bucket(o.id, %(ids)s)]
