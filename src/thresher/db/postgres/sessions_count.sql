-- How many sessions of this relay there are. Parameters: the beginning of the application names of this relay, and that of
-- those which do not count.
SELECT count(*)
  FROM pg_catalog.pg_stat_activity
 WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
   AND pg_catalog.starts_with(application_name, %s) AND NOT pg_catalog.starts_with(application_name, %s)
