-- Writes the leader's layout, after everything that was published under the recorded layout is settled. Fence: the
-- term.
UPDATE {table} SET mode = %(mode)s, shards = %(shards)s, progress_topic_id = %(topic_id)s, settled_on = %(settled_on)s
 WHERE name = %(name)s AND term = %(term)s
