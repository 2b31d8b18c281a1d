-- As log_slot_create, with the failover option, on servers whose standbys can keep the slot too.
SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)
