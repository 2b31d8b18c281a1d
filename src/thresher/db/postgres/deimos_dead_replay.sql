-- Puts dead rows back under their own ids, so that they do not land behind followers that wait for them, with a new
-- create time, so that no old progress record speaks of them. Parameters: those of dead_chosen. Of several that had an id
-- one after another, the oldest. Index: the primary keys. An id that is taken is an error.
WITH chosen AS (
  SELECT DISTINCT ON (d.id) d.id, d.create_time
    FROM {dead} d
   WHERE {chosen}
   ORDER BY d.id, d.create_time
), gone AS (
  DELETE FROM {dead} d
   USING chosen c
   WHERE d.id = c.id AND d.create_time = c.create_time
  RETURNING d.id, d.kafka_topic, d.kafka_key, d.kafka_value, d.partition_key
)
INSERT INTO {table}
  (id, topic, key, message, partition_key, created_at, updated_at)
SELECT g.*, pg_catalog.clock_timestamp() AT TIME ZONE 'UTC', pg_catalog.clock_timestamp() AT TIME ZONE 'UTC'
  FROM gone g ORDER BY g.id
