-- Writes the newest record of each key. Index: the unique one of the key, which is also the conflict's arbiter. Fence:
-- the guard columns. A row is written only by a later record than the one that wrote it. Within a partition, the higher
-- offset is later. Between partitions, the higher timestamp is later, then the higher partition. A row keeps the
-- highest timestamp of its partition, so that a clock that was set back does not matter.
INSERT INTO {table} AS t ({columns}, {partition}, {offset}, {timestamp})
SELECT {casts}, n.kafka_partition, n.kafka_offset, n.kafka_timestamp
  FROM unnest({arrays}, %s::bigint[], %s::bigint[], %s::bigint[])
       AS n({names}, kafka_partition, kafka_offset, kafka_timestamp)
ON CONFLICT ({key}) DO UPDATE
   SET {assignments}{partition} = EXCLUDED.{partition}, {offset} = EXCLUDED.{offset},
       {timestamp} = CASE WHEN t.{partition} = EXCLUDED.{partition}
                          THEN greatest(t.{timestamp}, EXCLUDED.{timestamp}) ELSE EXCLUDED.{timestamp} END
 WHERE t.{offset} IS NULL
    OR CASE WHEN t.{partition} = EXCLUDED.{partition} THEN t.{offset} {before} EXCLUDED.{offset}
            ELSE (t.{timestamp}, t.{partition}) < (EXCLUDED.{timestamp}, EXCLUDED.{partition}) END
