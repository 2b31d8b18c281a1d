-- Whether a slot of this database keeps the WAL for its reader. A view of the server's memory; nothing is locked.
SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                WHERE s.slot_name = %s AND s.database = pg_catalog.current_database() AND s.plugin = 'pgoutput'
                  AND s.wal_status <> 'lost')
