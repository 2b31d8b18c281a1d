-- Deletes rows from the outbox that are in the dead-letter table as well. A tail reads a commit from the WAL slightly
-- before other sessions see its rows. So when it wrote the dead row, it may not have found the row in the table.
-- Parameters: as in dead_chosen. Index: the primary keys.
DELETE FROM {table} o
 USING {dead} d
 WHERE {chosen}
   AND o.id = d.id AND greatest('0001-01-02', least('9999-12-30', {created})) = d.create_time
