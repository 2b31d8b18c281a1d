-- Stores a change read from the WAL that can never be sent as a dead row, as a committed progress record says. Index:
-- the primary key. Idempotent.
INSERT INTO {dead}
  (id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition,
   kafka_timestamp, kind, reason, attempts, blocking)
VALUES (%(id)s, %(create_time)s, %(topic)s, %(key)s::bytea, %(value)s::bytea, %(names)s::text[], %(values)s::bytea[],
        %(partition)s, %(timestamp)s::timestamptz, %(kind)s, %(reason)s, %(attempts)s, %(blocking)s)
ON CONFLICT (id, create_time) DO NOTHING
