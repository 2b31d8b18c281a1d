-- The server process of this session: it stays the same as long as the session lasts. Process ids are reused, their
-- start times are not.
SELECT a.pid || '/' || extract(epoch FROM a.backend_start)
  FROM pg_catalog.pg_stat_activity a
 WHERE a.pid = pg_catalog.pg_backend_pid()
