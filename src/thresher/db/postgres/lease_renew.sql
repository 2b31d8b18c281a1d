-- Extends a lease that this process still holds. Index: the primary key. Fence: holder and token.
UPDATE {table}
   SET until = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => %(seconds)s)
 WHERE name = %(name)s AND holder = %(holder)s AND token = %(token)s
