-- The condition for rows that a sweeper may take: they have waited long enough for a dispatcher, by the database's
-- clock. A create time that far in the future means that the clock was set back since; such a row may be taken too.
({created} <= pg_catalog.now() - %(min_age)s * interval '1 second'
        OR {created} > pg_catalog.now() + %(min_age)s * interval '1 second')
