-- Gives an outbox from a relay to a tail, or back. Its progress lies in another topic from now on. Fence: the term.
UPDATE {table} SET mode = %(mode)s, shards = 1, progress_topic_id = NULL, settled_on = NULL
 WHERE name = %(name)s AND term = %(term)s
