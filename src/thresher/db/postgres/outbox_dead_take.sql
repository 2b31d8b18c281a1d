-- Deletes dead rows and returns them, by id; the caller writes them to the WAL again in the same transaction.
-- Parameters: as in dead_chosen. Index: the primary key.
WITH gone AS (
  DELETE FROM {dead} d
   WHERE {chosen}
  RETURNING d.id, d.create_time, d.kafka_topic, d.kafka_key, d.kafka_value, d.kafka_header_keys, d.kafka_header_values,
            d.kafka_partition, d.kafka_timestamp
)
SELECT g.kafka_topic, g.kafka_key, g.kafka_value, g.kafka_header_keys, g.kafka_header_values, g.kafka_partition,
       g.kafka_timestamp
  FROM gone g ORDER BY g.id, g.create_time
