-- Stores a change read from the WAL that can never be sent as a dead row, in goharvest's shape. As outbox_tail_dead.
INSERT INTO {dead}
  (id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,
   kind, reason, attempts, blocking)
VALUES (%(id)s, %(create_time)s, %(topic)s, convert_from(%(key)s::bytea, 'UTF8'), convert_from(%(value)s::bytea, 'UTF8'),
        %(names)s::text[], %(values)s::text[], %(kind)s, %(reason)s, %(attempts)s, %(blocking)s)
ON CONFLICT (id, create_time) DO NOTHING
