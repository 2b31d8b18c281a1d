-- A new leader writes its term. Whoever finds another's there has been superseded.
UPDATE {table} SET term = %(term)s, term_time = pg_catalog.clock_timestamp() WHERE name = %(name)s
