-- Forgets that a message was processed. Index: the primary key.
DELETE FROM {table} WHERE context = %s AND message_id = %s
