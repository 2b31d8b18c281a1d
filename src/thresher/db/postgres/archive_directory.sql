-- The id of the directory at a path that was used last. Index: (directory, begin_time).
SELECT directory_id
  FROM {batches}
 WHERE directory = %s
 ORDER BY begin_time DESC
 LIMIT 1
