-- Creates a slot for pgoutput: the server keeps everything that commits from here on. Waits for open transactions.
SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput', false, false)
