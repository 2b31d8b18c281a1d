-- Whether the caller's transaction sees the newest committed rows, and whether it has written anything so far.
SELECT pg_catalog.current_setting('transaction_isolation')
         OPERATOR(pg_catalog.=) ANY (ARRAY['read committed', 'read uncommitted']),
       pg_catalog.txid_current_if_assigned() IS NOT NULL
