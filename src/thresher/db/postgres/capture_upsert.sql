-- Writes the newest record of each key. Index: the unique one of the key, which is also the arbiter. The guard is the fence: a
-- row is written only by a record that is later. In one partition the offset says so; between two, the timestamp, and of
-- equal ones the higher partition. A row keeps the latest timestamp of its partition, so that a clock that went back decides
-- nothing.
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
