-- Moves a batch to the archive's table, in one statement: a row is in one of the two tables. Index: that of archive_due.
-- Both counts are told: they differ where the archive has not taken every row, and the caller rolls back.
-- Rows that somebody has locked are left for the next time, and no row is moved that was changed and is not due any more.
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
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM kept), (SELECT max(id) FROM gone)
