-- Deletes the rows of tombstones. Index: the unique one of the key. Fence: the guard columns, compared as in
-- capture_upsert. A tombstone deletes a row only if it is later than the record that wrote the row.
DELETE FROM {table} t
 USING unnest({arrays}, %s::bigint[], %s::bigint[], %s::bigint[])
       AS n({names}, kafka_partition, kafka_offset, kafka_timestamp)
 WHERE {match}
   AND (t.{offset} IS NULL
        OR CASE WHEN t.{partition} = n.kafka_partition THEN t.{offset} {before} n.kafka_offset
                ELSE (t.{timestamp}, t.{partition}) < (n.kafka_timestamp, n.kafka_partition) END)
