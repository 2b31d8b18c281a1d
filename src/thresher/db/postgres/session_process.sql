-- Which process of the server serves this session: the same for as long as the session lasts. A process id may come again,
-- its beginning does not.
SELECT a.pid || '/' || extract(epoch FROM a.backend_start)
  FROM pg_catalog.pg_stat_activity a
 WHERE a.pid = pg_catalog.pg_backend_pid()
