-- Whether a record was applied, and if not, why it is dead, both from one snapshot. Indexes: the primary key of the
-- offsets, the unique index of the dead records.
SELECT o.topic_id, o.next_offset, d.kind, d.reason
  FROM {offsets} o
  LEFT JOIN {dead} d ON d.capture = o.capture AND d.kafka_topic = o.kafka_topic AND d.topic_id = o.topic_id
                    AND d.kafka_partition = o.kafka_partition AND d.kafka_offset = %(offset)s
 WHERE o.capture = %(capture)s AND o.kafka_topic = %(topic)s AND o.kafka_partition = %(partition)s
