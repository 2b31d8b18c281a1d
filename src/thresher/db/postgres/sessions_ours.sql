-- Other sessions of a pipeline: their names start so, and their role is our own or may lead, which is to update the
-- table of terms, and the outbox if there is one. Any login may give its sessions any name. Reads the server's own
-- state. Parameters: the prefix of names, the prefix of names that do not count, the seconds within which a session
-- must have been active, or NULL; the two tables' quoted names, the second may be NULL.
SELECT a.pid, a.usename
  FROM pg_catalog.pg_stat_activity a
 WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid()
   AND pg_catalog.starts_with(a.application_name, %(starting)s)
   AND NOT pg_catalog.starts_with(a.application_name, %(but)s)
   AND coalesce(a.state_change > pg_catalog.clock_timestamp() - %(seconds)s::double precision * interval '1 second', true)
   AND (a.usename = session_user
        OR pg_catalog.has_any_column_privilege(a.usesysid, pg_catalog.to_regclass(%(terms)s)::oid, 'UPDATE')
           AND coalesce(
             pg_catalog.has_any_column_privilege(a.usesysid, pg_catalog.to_regclass(%(outbox)s)::oid, 'UPDATE'), true))
