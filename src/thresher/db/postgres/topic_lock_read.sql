-- Returns a topic's oldest pending rows. Index: the head's own. Fence: the lock's token. Nothing is written to claim
-- rows: a process that loses the lock afterwards cannot commit, because of the producer's epoch. `{head}` is the
-- bounded head.
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw
  FROM (
{head}
       ) h
 WHERE EXISTS (SELECT FROM {locks} l WHERE l.topic = %(name)s AND l.token = %(token)s AND l.locked_by IS NOT NULL)
 ORDER BY h.id
