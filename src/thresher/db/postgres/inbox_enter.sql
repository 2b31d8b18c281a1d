-- Enters a message that is processed for the first time; `time` is false if it was entered before. Index: the primary
-- key. If an open transaction has entered the message, this waits for its end, for `wait` at most. The caller's own
-- lock_timeout is restored. One statement, because each further statement costs as much as the insert: `limits` is read
-- before the insert, and the time-out is restored once `entered` has been counted.
WITH limits AS MATERIALIZED (
SELECT pg_catalog.current_setting('lock_timeout') AS before,
       pg_catalog.set_config('lock_timeout', %(wait)s, true) AS now
), entered AS (
INSERT INTO {table} (context, message_id)
SELECT %(context)s, %(message_id)s FROM limits l WHERE l.now IS NOT NULL
ON CONFLICT (context, message_id) DO NOTHING RETURNING 1
), first AS MATERIALIZED (
SELECT pg_catalog.count(*) OPERATOR(pg_catalog.=) 1 AS time FROM entered
)
SELECT f.time, pg_catalog.set_config('lock_timeout', l.before, true) FROM first f CROSS JOIN limits l
