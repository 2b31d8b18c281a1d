-- Stores a record that cannot be applied as a dead record. A record that is stored already keeps its id. Index: the
-- unique one.
INSERT INTO {table} (capture, kafka_topic, topic_id, kafka_partition, kafka_offset, kafka_timestamp, kafka_key, kafka_value,
                     kafka_header_keys, kafka_header_values, kind, reason)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (capture, kafka_topic, kafka_partition, kafka_offset, topic_id)
DO UPDATE SET kind = EXCLUDED.kind, reason = EXCLUDED.reason, dead_time = pg_catalog.clock_timestamp()
