-- Identifies this incarnation of the database: it changes with a restart, a failover or a restore, also a restore into
-- a new database, table or file of the same server. Also returns the database's time, and the identity of the table and
-- its file. Parameter: the outbox's quoted name.
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
