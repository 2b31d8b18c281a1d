-- Moves rows that can never be sent to the dead-letter table, as a committed progress record says. One statement, so
-- each row is in exactly one of the two tables. Index and matching: as in relay_settle_delete. A row that is in the
-- dead-letter table already was put back by hand; it gets the newer content and reason. After a restore, the record
-- covers many batches: it may name several rows that had one id in turn, and a row more than once. The last entry for a
-- row counts.
WITH f AS (
  SELECT DISTINCT ON (id, create_time) *
    FROM unnest(%(ids)s, %(create_times)s, %(kinds)s::text[], %(reasons)s::text[], %(attempts)s::integer[],
                %(blocking)s::boolean[]) WITH ORDINALITY
           AS f(id, create_time, kind, reason, attempts, blocking, place)
   ORDER BY id, create_time, place DESC
), gone AS (
  DELETE FROM {table} o
   WHERE o.id = ANY (%(ids)s)
     AND ((o.id, greatest('0001-01-02', least('9999-12-30', o.created_at AT TIME ZONE 'UTC'))) NOT IN
           (SELECT w.id, w.create_time FROM unnest(%(ids)s, %(create_times)s) AS w(id, create_time))) IS FALSE
  RETURNING o.id, o.created_at AT TIME ZONE 'UTC' AS create_time, o.topic, o.key, o.message, o.partition_key
)
INSERT INTO {dead}
  (id, create_time, kafka_topic, kafka_key, kafka_value, partition_key, kind, reason, attempts, blocking)
SELECT g.id, g.create_time, g.topic, g.key, g.message, g.partition_key, f.kind, f.reason, f.attempts, f.blocking
  FROM gone g
  JOIN f ON f.id = g.id AND f.create_time = greatest('0001-01-02', least('9999-12-30', g.create_time))
ON CONFLICT (id, create_time) DO UPDATE
   SET kafka_topic = excluded.kafka_topic, kafka_key = excluded.kafka_key, kafka_value = excluded.kafka_value,
       partition_key = excluded.partition_key,
       kind = excluded.kind, reason = excluded.reason, attempts = excluded.attempts, blocking = excluded.blocking,
       dead_time = pg_catalog.clock_timestamp()
