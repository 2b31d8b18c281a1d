-- The transactions in which dispatchers may be sending rows of an outbox: they have locked it in ROW SHARE mode, and
-- have read the control table, if they began when there was one. Others that have locked both count too; a dump locks
-- neither so. A session counts if a role that it can take may set the stamp, which a dispatcher needs and a writer
-- lacks. So none counts in a table without a stamp. A prepared transaction has no session, and counts. Reads the
-- server's own state, and waits for nothing. No index. Parameters: the outbox, the control table.
SELECT l.virtualtransaction, nullif(l.pid, 0), a.usename, a.application_name, a.state,
       extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)::float8, a.query
  FROM (SELECT h.virtualtransaction, h.pid
          FROM pg_catalog.pg_locks h
          JOIN pg_catalog.pg_database d ON d.oid = h.database AND d.datname = pg_catalog.current_database()
         WHERE h.locktype = 'relation' AND h.granted AND h.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
         GROUP BY h.virtualtransaction, h.pid
        HAVING bool_or(h.relation = pg_catalog.to_regclass(%(outbox)s) AND h.mode = 'RowShareLock')
           AND (%(first)s OR bool_or(h.relation = pg_catalog.to_regclass(%(control)s)))) l
  JOIN pg_catalog.pg_attribute s
    ON s.attrelid = pg_catalog.to_regclass(%(outbox)s) AND s.attname = 'dispatched_time' AND NOT s.attisdropped
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE a.usesysid IS NULL
    OR EXISTS (SELECT FROM pg_catalog.pg_roles r
                WHERE pg_catalog.pg_has_role(a.usesysid, r.oid, 'MEMBER')
                  AND pg_catalog.has_column_privilege(r.oid, s.attrelid, s.attnum, 'UPDATE'))
