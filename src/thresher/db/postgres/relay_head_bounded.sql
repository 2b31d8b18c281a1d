-- A shard's head in a table with large rows: also bounded by bytes, and never less than one row. Sizes are read without
-- fetching what is stored out of line. `{head}` is the statement of the table's shape.
SELECT id, create_time, topic, key, value, header_keys, header_values, partition, timestamp, flaw
  FROM (SELECT h.*, row_number() OVER (ROWS UNBOUNDED PRECEDING) AS place,
               sum(coalesce(octet_length(h.key), 0)::bigint + coalesce(octet_length(h.value), 0)
                   + coalesce(pg_column_size(h.header_values), 0))
                 OVER (ROWS UNBOUNDED PRECEDING) AS running
          FROM (
{head}
          ) h) h
 WHERE running <= %(bytes)s OR place = 1
