-- An operator's word that an outbox is relayed under another name from now on. What identifies it stays: progress of an
-- earlier time under that name is its own. Index: the primary key.
UPDATE {table} SET name = %(name)s, progress_topic_id = NULL WHERE name = %(old)s AND outbox = %(outbox)s
