-- Deletes rows whose fate is in a committed progress record. Idempotent.
-- Index: the primary key, whatever the statistics say. A table that is empty most of the time has the statistics of an
-- empty table, and a join could be planned badly by them. The create time distinguishes a row from another with a
-- reused id. It is at the id's position in its array; width_bucket finds that by binary search, because the ids are
-- ascending and unique.
DELETE FROM {table} o
 WHERE o.id = ANY (%(ids)s)
   AND greatest('0001-01-02', least('9999-12-30', {created}))
         = (%(create_times)s)[pg_catalog.width_bucket(o.id, %(ids)s)]
