-- Marks the head of a shard with its leader id, and returns it: nobody else takes a marked row. Index: the head's own,
-- then the primary key. Fence: the control row must have our term; it is locked against a successor until the mark has
-- committed. Under another term nothing is marked.
-- `{head}` is the bounded head, `{control}` the control table, `{more}` further columns of the shape. `{mark}` and
-- `{leader}` are the column of the mark and its value. `{unstamped}` leaves out rows that were stamped since the head
-- was read: the update sees their newest version. "IS TRUE" makes the planner hash the marked ids. A join would become
-- a nested loop, by the statistics of a table that is empty most of the time.
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
