-- Stores a message that its handler cannot process in the dead-letter table.
INSERT INTO {dead} (context, message_id, kafka_topic, kafka_partition, kafka_offset, kafka_key, kafka_value,
                    kafka_header_keys, kafka_header_values, reason, attempts)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
