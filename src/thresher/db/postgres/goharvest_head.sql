-- The head of a shard in goharvest's shape: its oldest pending rows, by id. The bucket is computed for each row that is
-- read. Index: the primary key, reading past rows of other shards; (kafka_topic, id) if one topic is read. Rows are
-- left out and fenced as in outbox_head.
SELECT i.id, greatest('0001-01-02', least('9999-12-30', i.create_time)) AS create_time,
       i.kafka_topic AS topic, convert_to(i.kafka_key, 'UTF8') AS key,
       CASE WHEN octet_length(i.kafka_value) <= %(largest)s THEN convert_to(i.kafka_value, 'UTF8') END AS value,
       CASE WHEN array_ndims(i.kafka_header_keys) = 1 AND cardinality(i.kafka_header_keys) <= {most_headers}
            THEN i.kafka_header_keys[:] ELSE '{}' END AS header_keys,
       CASE WHEN cardinality(i.kafka_header_values) <= {most_headers} THEN
         ARRAY(SELECT convert_to(v.value, 'UTF8') FROM unnest(i.kafka_header_values) WITH ORDINALITY AS v(value, place)
                ORDER BY v.place) ELSE '{}' END AS header_values,
       NULL::integer AS partition, NULL::timestamptz AS timestamp,
       CASE WHEN {replaced} THEN 'replaced'
            WHEN octet_length(i.kafka_value) > %(largest)s THEN 'too-large'
            WHEN array_ndims(i.kafka_header_keys) > 1 OR array_ndims(i.kafka_header_values) > 1
              OR cardinality(i.kafka_header_keys) > {most_headers} OR cardinality(i.kafka_header_values) > {most_headers}
              THEN 'headers'
            END AS flaw
  FROM {table} i
 WHERE (get_byte(sha256(convert_to(i.kafka_key, 'UTF8')), 0) & 63) = ANY (%(buckets)s::smallint[])
   AND {unclaimed}
   AND (i.kafka_topic IN (SELECT t.topic FROM unnest(%(held)s::text[]) AS t(topic))) = %(among)s
   AND (i.kafka_key IS NULL OR (i.kafka_topic, i.kafka_key) NOT IN
         (SELECT d.kafka_topic, d.kafka_key FROM {dead} d WHERE d.blocking AND d.kafka_key IS NOT NULL))
 ORDER BY {order}
 LIMIT %(rows)s
