-- One replication slot. A view of the server's memory; nothing is locked. Newer columns are read by name, because older
-- servers do not have them.
SELECT s.plugin, s.database, s.active_pid, s.wal_status,
       pg_catalog.to_jsonb(s) ->> 'invalidation_reason',
       s.confirmed_flush_lsn::text, s.restart_lsn::text,
       CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.restart_lsn)::bigint END,
       s.safe_wal_size, coalesce((pg_catalog.to_jsonb(s) ->> 'failover')::boolean, false)
  FROM pg_catalog.pg_replication_slots s
 WHERE s.slot_name = %s
