-- Lets any record win over rows whose guard means another log: the topic was made anew, or was cut off before that offset.
-- Parameters: the partition, or NULL for all, and the least offset. Reads the whole table; somebody asked for it.
UPDATE {table}
   SET {partition} = NULL, {offset} = NULL, {timestamp} = NULL
 WHERE {partition} = coalesce(%s, {partition}) AND {offset} >= %s
