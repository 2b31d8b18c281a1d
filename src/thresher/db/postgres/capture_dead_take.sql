-- Removes a dead record, because it is applied or dropped. Index: the primary key.
DELETE FROM {table} WHERE capture = %s AND id = %s RETURNING id
