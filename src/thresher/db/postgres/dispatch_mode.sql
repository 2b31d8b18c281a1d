-- How the relays of an outbox send its rows. Few rows: no index. Fence: the lock of dispatch_begin, for which a take-over to
-- another mode waits.
SELECT name, mode FROM {table} WHERE outbox = %s
