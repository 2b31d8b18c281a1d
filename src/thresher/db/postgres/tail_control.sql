-- Hands an outbox from a relay to a tail, or back. From now on its progress is in another topic. Fence: the term.
UPDATE {table} SET mode = %(mode)s, shards = 1, progress_topic_id = NULL, settled_on = NULL
 WHERE name = %(name)s AND term = %(term)s
