-- Begins a dispatcher's transaction. Bounds how long a dispatcher that has vanished may keep its rows locked, and takes the
-- outbox' lock of dispatchers, shared. Without waiting: it is refused while a relay that is no sweeper takes over, which
-- waits for it in dispatch_await. What is read by later statements holds until the transaction ends.
SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       pg_catalog.pg_try_advisory_xact_lock_shared(
         pg_catalog.hashtextextended('thresher_dispatch', pg_catalog.to_regclass(%(outbox)s)::oid::bigint))
