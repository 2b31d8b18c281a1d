-- The lease's holder, and the seconds left until it expires. Writes nothing and locks nothing. Index: the primary key.
SELECT holder::text, token, until::text, extract(epoch FROM span)::double precision,
       CASE WHEN until = '-infinity' THEN 0
            ELSE extract(epoch FROM until - pg_catalog.clock_timestamp())::double precision END
  FROM {table} WHERE name = %(name)s
