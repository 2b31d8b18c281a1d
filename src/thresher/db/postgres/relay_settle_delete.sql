-- Removes rows whose fate a committed progress record holds.
-- Index: the primary key, whatever the statistics say: a table that is empty most of the time has those of an empty one,
-- and a join could be planned by them. The create time tells a row from another that came back under its id; it
-- stands at the id's place, which is found by halves: ids ascend, and none comes twice. Repeating it changes nothing.
DELETE FROM {table} o
 WHERE o.id = ANY (%(ids)s)
   AND greatest('0001-01-02', least('9999-12-30', {created}))
         = (%(create_times)s)[pg_catalog.width_bucket(o.id, %(ids)s)]
