-- How many of the rows are in the outbox with a stamp, or in the dead-letter table. Index: the primary keys; matching
-- as in relay_settle_stamp.
SELECT (SELECT count(*)
          FROM {table} o
         WHERE o.id = ANY (%(ids)s)
           AND greatest('0001-01-02', least('9999-12-30', o.create_time))
                 = (%(create_times)s)[pg_catalog.width_bucket(o.id, %(ids)s)]
           AND o.dispatched_time IS NOT NULL)
     + (SELECT count(*)
          FROM {dead} d
         WHERE d.id = ANY (%(ids)s)
           AND greatest('0001-01-02', least('9999-12-30', d.create_time))
                 = (%(create_times)s)[pg_catalog.width_bucket(d.id, %(ids)s)])
