-- How many sessions of this relay there are. Parameters: the beginning of the application names of this relay, and that of
-- those which do not count; and within how many seconds a session must have done something, or NULL.
SELECT count(*)
  FROM pg_catalog.pg_stat_activity
 WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
   AND pg_catalog.starts_with(application_name, %s) AND NOT pg_catalog.starts_with(application_name, %s)
   AND coalesce(state_change > pg_catalog.clock_timestamp() - %s::double precision * interval '1 second', true)
