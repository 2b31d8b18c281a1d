-- Moves rows that can never be sent to where they can be looked at and replayed, as a committed progress record says.
-- Index: the primary key. In one statement: a row is in one of the two tables. Repeating it changes nothing.
WITH gone AS (
  DELETE FROM {table} o
   USING unnest(%s::bigint[], %s::timestamptz[], %s::text[], %s::text[], %s::integer[], %s::boolean[])
         AS f(id, create_time, kind, reason, attempts, blocking)
   WHERE o.id = f.id AND o.create_time = f.create_time
  RETURNING o.id, o.create_time,
            o.kafka_topic, o.kafka_key, o.kafka_value, o.kafka_header_keys, o.kafka_header_values, o.kafka_partition, o.kafka_timestamp,
            f.kind, f.reason, f.attempts, f.blocking
)
INSERT INTO {dead}
  (id, create_time,
   kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition, kafka_timestamp,
   kind, reason, attempts, blocking)
SELECT * FROM gone
