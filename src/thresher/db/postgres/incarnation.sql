-- Which database this is, and since when: what a restart, a failover or a restore changes. And its time.
SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
       (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()) || '/' ||
         extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text,
       pg_catalog.pg_is_in_recovery(),
       extract(epoch FROM pg_catalog.clock_timestamp())::double precision
