-- How many sessions this relay has. Parameters: the prefix of this relay's application names; the prefix of names that
-- do not count; the seconds within which a session must have been active, or NULL.
SELECT count(*)
  FROM pg_catalog.pg_stat_activity
 WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
   AND pg_catalog.starts_with(application_name, %s) AND NOT pg_catalog.starts_with(application_name, %s)
   AND coalesce(state_change > pg_catalog.clock_timestamp() - %s::double precision * interval '1 second', true)
