-- Removes a dead message: to process it again, or to drop it. Index: the primary key.
DELETE FROM {dead} WHERE id = %s RETURNING context, message_id
