-- The name of the session that a lease's holder competes by. Writes nothing. Index: none, these are the server's sessions.
SELECT application_name FROM pg_catalog.pg_stat_activity
 WHERE datname = pg_catalog.current_database() AND pg_catalog.strpos(application_name, %(mark)s) > 0
 LIMIT 1
