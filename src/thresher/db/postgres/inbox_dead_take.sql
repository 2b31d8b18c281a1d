-- Removes a dead message: to process it again, or to drop it. Index: the primary key.
DELETE FROM {dead} WHERE id OPERATOR(pg_catalog.=) %s RETURNING context, message_id
