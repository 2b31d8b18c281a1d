-- The rows that a head in Thresher's own shape selects, of the buckets that `{mine}` names. Left out: rows that are
-- claimed already (`{unclaimed}`: in flight, or marked by this shard), topics that are held, keys that a dead row
-- blocks. With `among`, rows of the held topics are returned, and no others. IN (SELECT …) makes the planner hash the
-- topics: a comparison with each of thousands would take seconds. Arrays have lower bound 1, or are as stored; `{more}` are further columns. Reading writes nothing: the fence
-- is the producer's epoch.
SELECT i.id, greatest('0001-01-02', least('9999-12-30', i.create_time)) AS create_time,
       i.kafka_topic AS topic, i.kafka_key AS key,
       CASE WHEN octet_length(i.kafka_value) <= %(largest)s THEN i.kafka_value END AS value,
       {kafka_header_keys} AS header_keys, {kafka_header_values} AS header_values,
       i.kafka_partition AS partition,
       CASE WHEN i.kafka_timestamp >= '1970-01-01' AND i.kafka_timestamp < '9999-12-30' THEN i.kafka_timestamp END
         AS timestamp,
       CASE WHEN {replaced} THEN 'replaced'
            WHEN octet_length(i.kafka_value) > %(largest)s THEN 'too-large'
            WHEN array_ndims(i.kafka_header_keys) > 1 OR array_ndims(i.kafka_header_values) > 1
              OR cardinality(i.kafka_header_keys) > {most_headers} OR cardinality(i.kafka_header_values) > {most_headers}
              THEN 'headers'
            WHEN NOT (i.kafka_timestamp >= '1970-01-01' AND i.kafka_timestamp < '9999-12-30') THEN 'timestamp'
            END AS flaw{more}
  FROM {table} i
 WHERE {mine} AND i.dispatched_time IS NULL
   AND {unclaimed}
   AND (i.kafka_topic IN (SELECT t.topic FROM unnest(%(held)s::text[]) AS t(topic))) = %(among)s
   AND (i.kafka_key IS NULL OR (i.kafka_topic, i.kafka_key) NOT IN
         (SELECT d.kafka_topic, d.kafka_key FROM {dead} d WHERE d.blocking AND d.kafka_key IS NOT NULL))
