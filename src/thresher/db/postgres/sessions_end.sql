-- Ends the sessions of this relay's older terms: the row locks of a stopped process would block its successor for ever.
-- Parameters: the prefix of this relay's application names, and that of the new term.
SELECT count(pg_catalog.pg_terminate_backend(pid))
  FROM pg_catalog.pg_stat_activity
 WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
   AND pg_catalog.starts_with(application_name, %s) AND NOT pg_catalog.starts_with(application_name, %s)
