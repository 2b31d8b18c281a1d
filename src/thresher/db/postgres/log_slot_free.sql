-- Ends the session that reads a slot, unless it has this application name. A view of the server's memory.
SELECT pg_catalog.pg_terminate_backend(s.active_pid)
  FROM pg_catalog.pg_replication_slots s
  JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
 WHERE s.slot_name = %(slot)s AND a.application_name <> %(but)s
