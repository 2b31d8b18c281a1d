-- Ends a session, if it still has such a name: the row locks of a stopped process would block its successor for ever.
SELECT pg_catalog.pg_terminate_backend(a.pid)
  FROM pg_catalog.pg_stat_activity a
 WHERE a.pid = %s AND pg_catalog.starts_with(a.application_name, %s)
