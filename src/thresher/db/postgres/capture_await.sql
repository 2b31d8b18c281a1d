-- Whether a record was applied, and if not, why it is dead, both from one snapshot. Indexes: the primary key of the
-- offsets, the unique index of the dead records.
SELECT o.topic_id, o.next_offset, d.kind, d.reason
  FROM {offsets} o
  LEFT JOIN {dead} d ON d.capture OPERATOR(pg_catalog.=) o.capture AND d.kafka_topic OPERATOR(pg_catalog.=) o.kafka_topic
                    AND d.topic_id OPERATOR(pg_catalog.=) o.topic_id AND d.kafka_partition OPERATOR(pg_catalog.=) o.kafka_partition
                    AND d.kafka_offset OPERATOR(pg_catalog.=) %(offset)s
 WHERE o.capture OPERATOR(pg_catalog.=) %(capture)s AND o.kafka_topic OPERATOR(pg_catalog.=) %(topic)s
   AND o.kafka_partition OPERATOR(pg_catalog.=) %(partition)s
