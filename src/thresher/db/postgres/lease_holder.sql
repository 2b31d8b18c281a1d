-- The application name of the session over which a lease's holder competes. Any login may give a session such a name:
-- only those of roles that may take the lease count. Writes nothing. Index: none; this is the server's view of its
-- sessions.
SELECT a.application_name FROM pg_catalog.pg_stat_activity a
 WHERE a.datname = pg_catalog.current_database() AND pg_catalog.strpos(a.application_name, %(mark)s) > 0
   AND (a.usename = session_user
        OR pg_catalog.has_any_column_privilege(a.usesysid, pg_catalog.to_regclass(%(leases)s)::oid, 'UPDATE'))
 LIMIT 1
