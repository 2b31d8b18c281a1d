-- The mode of each relay of an outbox. No index: the table has few rows. Fence: the lock of dispatch_begin, for which a
-- take-over in another mode waits.
SELECT name, mode FROM {table} WHERE outbox OPERATOR(pg_catalog.=) %s
