-- The stored offsets of one topic, read before a record is published that will be waited for. Index: the primary key.
SELECT kafka_partition, topic_id, next_offset
  FROM {offsets}
 WHERE capture OPERATOR(pg_catalog.=) %(capture)s AND kafka_topic OPERATOR(pg_catalog.=) %(topic)s
