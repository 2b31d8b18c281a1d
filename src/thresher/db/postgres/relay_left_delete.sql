-- How many rows that were settled are still pending, because something keeps them so. Index as in relay_settle_delete.
SELECT count(*)
  FROM {table} o
 WHERE o.ctid = ANY (ARRAY(
         SELECT (SELECT i.ctid FROM {table} i WHERE i.id = f.id AND greatest('0001-01-02', least('9999-12-30', i.create_time)) = f.create_time)
           FROM unnest(%s::bigint[], %s::timestamptz[]) AS f(id, create_time)))
