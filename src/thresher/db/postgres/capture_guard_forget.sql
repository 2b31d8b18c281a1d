-- Clears the guard of rows, so that any record may overwrite them. For guards whose offsets no longer mean the same
-- records: the topic was recreated, or was truncated before that offset. Parameters: the partition, or NULL for all,
-- and the lowest offset. Scans the whole table; it runs only at an operator's request.
UPDATE {table}
   SET {partition} = NULL, {offset} = NULL, {timestamp} = NULL
 WHERE {partition} = coalesce(%s, {partition}) AND {offset} >= %s
