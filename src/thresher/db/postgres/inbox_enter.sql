-- Enters a message that is processed for the first time. Index: the primary key. Where another transaction has entered it and
-- is open, this waits for its end, as long as it is told; the caller's own limit of waiting is as it was afterwards. In one
-- statement, since each costs as much as the row itself: `limits` is read before the row is inserted, and its limit put back
-- once `entered` has been counted.
WITH limits AS MATERIALIZED (
SELECT pg_catalog.current_setting('lock_timeout') AS before,
       pg_catalog.set_config('lock_timeout', %(wait)s, true) AS now
), entered AS (
INSERT INTO {table} (context, message_id)
SELECT %(context)s, %(message_id)s FROM limits l WHERE l.now IS NOT NULL
ON CONFLICT (context, message_id) DO NOTHING RETURNING 1
), first AS MATERIALIZED (
SELECT count(*) = 1 AS time FROM entered
)
SELECT f.time, pg_catalog.set_config('lock_timeout', l.before, true) FROM first f CROSS JOIN limits l
