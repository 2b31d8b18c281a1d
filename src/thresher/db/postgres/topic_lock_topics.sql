-- The topics of pending rows, one index probe per topic. Index: ({topic}, id) of pending rows.
t AS (
(SELECT i.{topic}::text AS topic FROM {table} i WHERE {waiting} ORDER BY i.{topic} LIMIT 1)
UNION ALL
SELECT (SELECT i.{topic}::text FROM {table} i WHERE i.{topic} > t.topic AND {waiting} ORDER BY i.{topic} LIMIT 1)
  FROM t WHERE t.topic IS NOT NULL
)
