-- Stamps the rows that a dispatcher has locked and the brokers have acknowledged. Index: the primary key. Fence: the
-- row locks.
UPDATE {table} o
   SET dispatched_time = pg_catalog.clock_timestamp()
 WHERE o.id OPERATOR(pg_catalog.=) ANY (%(ids)s) AND pg_catalog.num_nulls(o.dispatched_time) OPERATOR(pg_catalog.=) 1
