-- Whether a slot of this database keeps the WAL for its reader. A view of the server's memory; nothing is locked.
SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                WHERE s.slot_name OPERATOR(pg_catalog.=) %s AND s.database OPERATOR(pg_catalog.=) pg_catalog.current_database()
                  AND s.plugin OPERATOR(pg_catalog.=) 'pgoutput' AND s.wal_status OPERATOR(pg_catalog.<>) 'lost')
