-- The application name of the session over which a lease's holder competes. Writes nothing. Index: none; this is the
-- server's view of its sessions.
SELECT application_name FROM pg_catalog.pg_stat_activity
 WHERE datname = pg_catalog.current_database() AND pg_catalog.strpos(application_name, %(mark)s) > 0
 LIMIT 1
