-- Marks the head of a shard with its leader id, and returns it: a row that is marked is taken by nobody else.
-- Index: the head's own, then the primary key. Fence: the control row, locked against a successor until the mark has
-- committed, has our term; otherwise nothing is marked. `{head}` is the bounded head, `{control}` the control table,
-- `{mark}` and `{leader}` the column of the mark and its value, `{more}` further columns of the shape.
-- `{unstamped}` leaves a row that was stamped since the head was read: the update sees its newest version. "IS TRUE" has
-- the marked ids hashed: a join would be a loop in a loop, by the statistics of a table that is empty most of the time.
WITH head AS MATERIALIZED (
{head}
), marked AS (
UPDATE {table} o
   SET {mark} = {leader}
 WHERE o.id = ANY (ARRAY(SELECT h.id FROM head h)){unstamped}
   AND EXISTS (SELECT FROM {control} c WHERE c.name = %(name)s AND c.term = %(term)s::uuid FOR SHARE)
RETURNING o.id
)
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw{more}
  FROM head h
 WHERE (h.id IN (SELECT m.id FROM marked m)) IS TRUE
 ORDER BY h.id
