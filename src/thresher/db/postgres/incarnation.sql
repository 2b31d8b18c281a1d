-- Which database this is, and since when: what a restart, a failover or a restore changes, also one into a new database
-- or table of the same server. And its time. Parameter: the outbox's quoted name.
SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()) || '/' || d.oid,
       (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()) || '/' ||
         extract(epoch FROM pg_catalog.pg_postmaster_start_time()) || '/' || d.oid || '/' ||
         coalesce(pg_catalog.to_regclass(%s)::oid, 0),
       pg_catalog.pg_is_in_recovery(),
       extract(epoch FROM pg_catalog.clock_timestamp())::double precision
  FROM pg_catalog.pg_database d
 WHERE d.datname = pg_catalog.current_database()
