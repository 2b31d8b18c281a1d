-- Moves stored offsets forward, never back. Index: the primary key. Fence: the rows are locked by this transaction.
UPDATE {table} o
   SET next_offset = n.next_offset, moved_time = pg_catalog.clock_timestamp()
  FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) AS n(kafka_topic, kafka_partition, next_offset)
 WHERE o.capture = %s AND o.kafka_topic = n.kafka_topic AND o.kafka_partition = n.kafka_partition
   AND o.next_offset < n.next_offset
