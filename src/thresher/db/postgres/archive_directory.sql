-- The id of the directory that was used last at a path. Index: (directory, begin_time).
SELECT directory_id
  FROM {batches}
 WHERE directory = %s
 ORDER BY begin_time DESC
 LIMIT 1
