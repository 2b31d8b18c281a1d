-- Locks and returns the rows of receipts that a dispatcher may send now, by id. Index: the primary key; matched by id
-- and create time as in relay_settle_delete. Fence: the row lock, held until the stamp has committed. Left out are rows
-- that another sender has locked, and rows with a sweeper's mark. `fit` is false for a row that only a sweeper can
-- judge.
SELECT i.id, i.kafka_topic, i.kafka_key, i.kafka_value,
       CASE WHEN pg_catalog.array_ndims(i.kafka_header_keys) OPERATOR(pg_catalog.=) 1
             AND pg_catalog.cardinality(i.kafka_header_keys) OPERATOR(pg_catalog.<=) {most_headers}
            THEN i.kafka_header_keys[:] ELSE '{}' END,
       CASE WHEN pg_catalog.array_ndims(i.kafka_header_values) OPERATOR(pg_catalog.=) 1
             AND pg_catalog.cardinality(i.kafka_header_values) OPERATOR(pg_catalog.<=) {most_headers}
            THEN i.kafka_header_values[:] ELSE '{}' END,
       i.kafka_partition,
       CASE WHEN i.kafka_timestamp OPERATOR(pg_catalog.>=) '1970-01-01'
             AND i.kafka_timestamp OPERATOR(pg_catalog.<) '9999-12-30' THEN i.kafka_timestamp END,
       coalesce(pg_catalog.array_ndims(i.kafka_header_keys), 1) OPERATOR(pg_catalog.=) 1
         AND coalesce(pg_catalog.array_ndims(i.kafka_header_values), 1) OPERATOR(pg_catalog.=) 1
         AND pg_catalog.cardinality(i.kafka_header_keys) OPERATOR(pg_catalog.<=) {most_headers}
         AND pg_catalog.cardinality(i.kafka_header_values) OPERATOR(pg_catalog.<=) {most_headers}
         AND coalesce(i.kafka_timestamp OPERATOR(pg_catalog.>=) '1970-01-01'
                      AND i.kafka_timestamp OPERATOR(pg_catalog.<) '9999-12-30', true) AS fit
  FROM {table} i
 WHERE i.id OPERATOR(pg_catalog.=) ANY (%(ids)s)
   AND i.create_time OPERATOR(pg_catalog.=) (%(create_times)s)[pg_catalog.width_bucket(i.id, %(ids)s)]
   AND pg_catalog.num_nulls(i.dispatched_time, i.leader_id) OPERATOR(pg_catalog.=) 2
 ORDER BY i.id
   FOR NO KEY UPDATE OF i SKIP LOCKED
