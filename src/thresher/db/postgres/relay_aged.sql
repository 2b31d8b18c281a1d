-- Which rows of the head a sweeper may take: those that have waited long enough for a dispatcher, by the database's clock.
-- So far in the future lies only a row from before the clock went back.
({created} <= pg_catalog.now() - %(min_age)s * interval '1 second'
        OR {created} > pg_catalog.now() + %(min_age)s * interval '1 second')
