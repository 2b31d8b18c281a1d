-- The oldest pending rows of a topic, of the buckets of one of its parts. Index: (kafka_topic, id) WHERE
-- dispatched_time IS NULL. The topic is compared by >= and <=, and ORDER BY names it. With "=", the primary key would
-- serve the order, and the scan would read past other topics' rows.
SELECT h.id, h.create_time, h.topic, h.key, h.value, h.header_keys, h.header_values, h.partition, h.timestamp, h.flaw
  FROM (
{pick}
 ORDER BY i.kafka_topic, i.id
 LIMIT %(rows)s) h
