-- Begins a dispatcher's transaction. Bounds how long a dispatcher that has vanished keeps its rows locked. Takes the
-- dispatchers' shared advisory lock of the outbox, without waiting: it is refused while a relay that is no sweeper
-- takes over and waits in dispatch_await. The relay's mode, read by a later statement, holds until the transaction
-- ends.
SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       pg_catalog.pg_try_advisory_xact_lock_shared(
         pg_catalog.hashtextextended('thresher_dispatch', pg_catalog.to_regclass(%(outbox)s)::oid::bigint))
