-- The sessions that hold the locks for which other sessions wait. Reads the server's own state: no index, no lock on any
-- table. A prepared transaction has pid 0 and no session. A session of another role may have any name, and is none of
-- ours. `{which}` chooses the sessions that wait, and has one parameter.
SELECT DISTINCT blocking.pid, holder.usename, holder.application_name, holder.state,
       extract(epoch FROM pg_catalog.clock_timestamp() - holder.xact_start)::float8, holder.query
  FROM pg_catalog.pg_stat_activity AS waiting
 CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(waiting.pid)) AS blocking(pid)
  LEFT JOIN pg_catalog.pg_stat_activity AS holder ON holder.pid = blocking.pid
 WHERE waiting.datname = pg_catalog.current_database() AND {which}
   AND waiting.usename = session_user AND waiting.wait_event_type = 'Lock'
