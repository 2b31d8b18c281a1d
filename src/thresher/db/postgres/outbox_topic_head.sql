-- The oldest pending rows of a topic, of the buckets of a part of it. Index: (kafka_topic, id) WHERE dispatched_time IS
-- NULL. Not "=", and ordered by the topic too: else the primary key would do for the order, and other topics' rows would
-- be stepped over.
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw
  FROM (
{pick}
 ORDER BY i.kafka_topic, i.id
 LIMIT %(rows)s) h
