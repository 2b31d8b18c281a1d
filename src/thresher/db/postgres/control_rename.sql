-- Records an operator's decision that an outbox is relayed under another name. The outbox's id stays, so that progress
-- records of an earlier time under that name still count. Index: the primary key.
UPDATE {table} SET name = %(name)s, progress_topic_id = NULL
 WHERE name = %(old)s AND name <> %(name)s AND outbox = %(outbox)s
