-- Stores a change read from the WAL that can never be sent as a dead row, in Deimos' shape. As outbox_tail_dead.
INSERT INTO {dead}
  (id, create_time, kafka_topic, kafka_key, kafka_value, partition_key, kind, reason, attempts, blocking)
VALUES (%(id)s, %(create_time)s, %(topic)s, %(key)s::bytea, %(value)s::bytea,
        convert_from(%(partition_key)s::bytea, 'UTF8'), %(kind)s, %(reason)s, %(attempts)s, %(blocking)s)
ON CONFLICT (id, create_time) DO NOTHING
