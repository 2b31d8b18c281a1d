-- Removes rows from their table that are set aside all the same. The log tells a tail of a commit a moment before others see
-- it: a row that is set aside at once may not be found in the table yet. Parameters: those of dead_chosen. Index: the
-- primary keys.
DELETE FROM {table} o
 USING {dead} d
 WHERE {chosen}
   AND o.id = d.id AND greatest('0001-01-02', least('9999-12-30', {created})) = d.create_time
