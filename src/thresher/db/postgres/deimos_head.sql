-- The head of a shard in Deimos' shape: its oldest pending rows, by id. The bucket is computed for each row that is
-- read. Rows are ordered per partition key, or per key if the partition key is NULL; a row without either goes by its
-- id. The column `partition_key` of the result chooses the partition, instead of the producer's partitioner. It is set
-- for an empty key too, which the producer would send to a random partition.
-- Index: the primary key, reading past rows of other shards; (topic, id) if one topic is read. Rows are left out and
-- fenced as in outbox_head.
SELECT i.id, greatest('0001-01-02', least('9999-12-30', i.created_at AT TIME ZONE 'UTC')) AS create_time,
       i.topic, i.key,
       CASE WHEN octet_length(i.message) <= %(largest)s THEN i.message END AS value,
       '{}'::text[] AS header_keys, '{}'::bytea[] AS header_values,
       NULL::integer AS partition, NULL::timestamptz AS timestamp,
       CASE WHEN {replaced} THEN 'replaced'
            WHEN octet_length(i.message) > %(largest)s OR octet_length(i.partition_key) > %(largest)s THEN 'too-large'
            END AS flaw,
       CASE WHEN i.partition_key IS NULL THEN CASE WHEN octet_length(i.key) = 0 THEN i.key END
            WHEN octet_length(i.partition_key) <= %(largest)s THEN convert_to(i.partition_key, 'UTF8')
            END AS partition_key
  FROM {table} i
 WHERE CASE WHEN i.partition_key IS NULL AND i.key IS NULL THEN i.id & 63
            ELSE get_byte(sha256(coalesce(convert_to(i.partition_key, 'UTF8'), i.key)), 0) & 63
            END = ANY (%(buckets)s::smallint[])
   AND {unclaimed}
   AND (i.topic IN (SELECT t.topic FROM unnest(%(held)s::text[]) AS t(topic))) = %(among)s
   AND (coalesce(convert_to(i.partition_key, 'UTF8'), i.key) IS NULL
        OR (i.topic, coalesce(convert_to(i.partition_key, 'UTF8'), i.key)) NOT IN
         (SELECT d.kafka_topic, coalesce(convert_to(d.partition_key, 'UTF8'), d.kafka_key)
            FROM {dead} d
           WHERE d.blocking AND coalesce(convert_to(d.partition_key, 'UTF8'), d.kafka_key) IS NOT NULL))
 ORDER BY {order}
 LIMIT %(rows)s
