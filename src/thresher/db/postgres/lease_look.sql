-- Whose the lease is, and for how many seconds yet. Writes nothing and locks nothing. Index: the primary key.
SELECT holder::text, token, until::text, extract(epoch FROM span)::double precision,
       CASE WHEN until = '-infinity' THEN 0
            ELSE extract(epoch FROM until - pg_catalog.clock_timestamp())::double precision END
  FROM {table} WHERE name = %(name)s
