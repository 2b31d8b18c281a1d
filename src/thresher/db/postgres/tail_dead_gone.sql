-- Deletes a dead row from the outbox, so that it can be put back under its id. Index: the primary key.
DELETE FROM {table} o
 WHERE o.id = %(id)s AND greatest('0001-01-02', least('9999-12-30', {created})) = %(create_time)s
