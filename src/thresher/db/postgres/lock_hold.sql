-- Records that this session holds a lock, unless a living session of its recorded role does. The start of another role's
-- session is hidden: then its process id decides. Index: the primary key. Fence: the row's lock. Parameter: the name.
UPDATE {table} l
   SET pid = own.pid, started = own.backend_start, role = own.usename
  FROM pg_catalog.pg_stat_activity own
 WHERE l.name = %s AND own.pid = pg_catalog.pg_backend_pid()
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a
                    WHERE a.pid = l.pid AND a.usename = l.role AND a.pid <> own.pid
                      AND coalesce(a.backend_start = l.started, true))
