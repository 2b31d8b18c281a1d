-- Puts dead rows back under their own ids, so that they precede the later rows of their key that wait for them. The
-- create time is new, so that no old progress record matches them. Of several dead rows with one id, the oldest is put
-- back. Parameters: as in dead_chosen. Index: the primary keys. An id that is in use is an error.
WITH chosen AS (
  SELECT DISTINCT ON (d.id) d.id, d.create_time
    FROM {dead} d
   WHERE {chosen}
   ORDER BY d.id, d.create_time
), gone AS (
  DELETE FROM {dead} d
   USING chosen c
   WHERE d.id = c.id AND d.create_time = c.create_time
  RETURNING d.id,
            d.kafka_topic, d.kafka_key, d.kafka_value, d.kafka_header_keys, d.kafka_header_values, d.kafka_partition, d.kafka_timestamp
)
INSERT INTO {table}
  (id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition, kafka_timestamp, create_time)
SELECT g.*, pg_catalog.clock_timestamp() FROM gone g ORDER BY g.id
