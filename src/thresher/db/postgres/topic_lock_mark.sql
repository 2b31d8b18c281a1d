-- Sets the session id of a topic's oldest pending rows, and returns them. Index: the head's own, then the primary key.
-- Fence: the lock's token; the lock's row is locked against the next taker until this has committed. `{head}` is the
-- bounded head; `{unstamped}` and "IS TRUE" are as in relay_mark.
WITH head AS MATERIALIZED (
{head}
), marked AS (
UPDATE {table} o
   SET {mark} = {leader}
 WHERE o.id = ANY (ARRAY(SELECT h.id FROM head h)){unstamped}
   AND EXISTS (SELECT FROM {locks} l
                WHERE l.topic = %(name)s AND l.token = %(token)s AND l.locked_by IS NOT NULL FOR SHARE)
RETURNING o.id
)
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw{more}
  FROM head h
 WHERE (h.id IN (SELECT m.id FROM marked m)) IS TRUE
 ORDER BY h.id
