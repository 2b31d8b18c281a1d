-- Whether this session's user can read the WAL: version, wal_level and privileges. Reads catalogs only; nothing is
-- locked. On Amazon RDS, where no role has the REPLICATION attribute, the role rds_replication stands for it.
SELECT pg_catalog.current_setting('server_version_num')::integer, pg_catalog.current_setting('wal_level'),
       pg_catalog.current_database(), session_user,
       EXISTS (SELECT FROM pg_catalog.pg_roles r
                WHERE (r.rolname = session_user AND (r.rolsuper OR r.rolreplication))
                   OR (r.rolname = 'rds_replication' AND pg_catalog.pg_has_role(session_user, r.oid, 'member')))
