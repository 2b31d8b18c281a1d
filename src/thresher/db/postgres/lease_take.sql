-- Takes a lease that has expired, or one that was not renewed since `seen`. `seen` is given only after the row stayed
-- unchanged for long enough, because this database's clock may have been set back. Index: the primary key. Fence: the
-- token, which rises with each taking.
UPDATE {table}
   SET holder = %(holder)s, token = token + 1,
       until = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => %(seconds)s),
       span = pg_catalog.make_interval(secs => %(seconds)s)
 WHERE name = %(name)s AND token = %(token)s
   AND (until <= pg_catalog.clock_timestamp() OR until = %(seen)s::timestamp with time zone)
RETURNING token
