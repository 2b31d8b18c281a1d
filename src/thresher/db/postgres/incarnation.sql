-- Which database this is, and since when: what a restart, a failover or a restore changes, also one into a new database,
-- table or file of the same server. And its time, and which table with which file this is. Parameter: the outbox's quoted
-- name.
SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()) || '/' || d.oid,
       (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()) || '/' ||
         extract(epoch FROM pg_catalog.pg_postmaster_start_time()) || '/' || d.oid || '/' || coalesce(t.identity, '0'),
       pg_catalog.pg_is_in_recovery(),
       extract(epoch FROM pg_catalog.clock_timestamp())::double precision,
       t.identity
  FROM pg_catalog.pg_database d
 CROSS JOIN (SELECT o.oid || '/' || pg_catalog.pg_relation_filenode(o.oid) AS identity
               FROM (SELECT pg_catalog.to_regclass(%s)::oid AS oid) o) t
 WHERE d.datname = pg_catalog.current_database()
