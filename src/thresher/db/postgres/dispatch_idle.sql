-- Bounds how long a dispatcher that has vanished may keep its rows locked. For the transaction alone.
SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', %s, true)
