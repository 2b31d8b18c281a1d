-- goharvest_head for a table with large rows: also bounded by bytes, and never less than one row. Sizes are read without
-- fetching what is stored out of line.
SELECT id, create_time, topic, key, value, header_keys, header_values, partition, timestamp, flaw
  FROM (SELECT h.*, row_number() OVER (ROWS UNBOUNDED PRECEDING) AS place,
               sum(coalesce(octet_length(h.key), 0)::bigint + coalesce(octet_length(h.value), 0)
                   + coalesce(pg_column_size(h.header_values), 0))
                 OVER (ROWS UNBOUNDED PRECEDING) AS running
          FROM (
SELECT i.id, greatest('0001-01-02', least('9999-12-30', i.create_time)) AS create_time,
       i.kafka_topic AS topic, convert_to(i.kafka_key, 'UTF8') AS key,
       CASE WHEN octet_length(i.kafka_value) <= %(largest)s THEN convert_to(i.kafka_value, 'UTF8') END AS value,
       CASE WHEN array_ndims(i.kafka_header_keys) = 1 THEN i.kafka_header_keys ELSE '{}' END AS header_keys,
       ARRAY(SELECT convert_to(v.value, 'UTF8') FROM unnest(i.kafka_header_values) WITH ORDINALITY AS v(value, place)
              ORDER BY v.place) AS header_values,
       NULL::integer AS partition, NULL::timestamptz AS timestamp,
       CASE WHEN octet_length(i.kafka_value) > %(largest)s THEN 'too-large'
            WHEN array_ndims(i.kafka_header_keys) > 1 OR array_ndims(i.kafka_header_values) > 1 THEN 'headers'
            END AS flaw
  FROM {table} i
 WHERE (get_byte(sha256(convert_to(i.kafka_key, 'UTF8')), 0) & 63) = ANY (%(buckets)s::smallint[])
   AND i.id NOT IN (SELECT unnest(%(in_flight)s::bigint[]))
   AND i.kafka_topic <> ALL (%(held)s::text[])
   AND (i.kafka_key IS NULL OR (i.kafka_topic, i.kafka_key) NOT IN
         (SELECT d.kafka_topic, d.kafka_key FROM {dead} d WHERE d.blocking AND d.kafka_key IS NOT NULL))
 ORDER BY i.id
 LIMIT %(rows)s
          ) h) h
 WHERE running <= %(bytes)s OR place = 1
