-- The leader's layout, once what the recorded one published is settled. Fence: the term.
UPDATE {table} SET mode = %(mode)s, shards = %(shards)s, progress_topic_id = %(topic_id)s, settled_on = %(settled_on)s
 WHERE name = %(name)s AND term = %(term)s
