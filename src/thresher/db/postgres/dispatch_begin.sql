-- Begins a dispatcher's transaction. Bounds how long a dispatcher that has vanished keeps its rows locked. Locks the
-- table in ROW SHARE mode, as a later lock of its rows does, and locks no row: by this lock dispatch_sending finds the
-- transaction, whatever mode a later statement reads. No index: nothing is read.
SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       EXISTS (SELECT FROM {table} WHERE false FOR NO KEY UPDATE)
