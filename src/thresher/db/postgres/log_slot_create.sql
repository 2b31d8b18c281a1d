-- Makes a slot for pgoutput: all that commits from here on is kept for it. Waits for transactions that are open.
SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput', false, false)
