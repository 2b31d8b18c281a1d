-- Moves a batch to the archive's table in one statement, so that each row is in exactly one of the two tables. Index:
-- as in archive_due.
-- Returns the number of rows chosen, deleted and inserted. If they differ, the outbox kept rows or the archive refused
-- some, and the caller rolls back.
-- Rows that another session has locked stay for the next run. A row that was changed and is no longer due stays too.
WITH due AS (
{due}
   FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {table} o USING due WHERE o.id = due.id RETURNING o.*
), kept AS (
  INSERT INTO {archive} ({columns})
  SELECT {columns} FROM gone ORDER BY id
  RETURNING 1
)
SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM gone), (SELECT count(*) FROM kept), (SELECT max(id) FROM gone)
