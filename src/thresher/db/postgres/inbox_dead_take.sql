-- Takes a message out of those that were set aside: to be processed again, or dropped. Index: the primary key.
DELETE FROM {dead} WHERE id = %s RETURNING context, message_id
