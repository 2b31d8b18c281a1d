-- A shard's head in a table with large rows: bounded by bytes too, but at least one row. The sizes of keys and values
-- are read without fetching TOASTed content. A row whose key or headers exceed the largest possible record is returned
-- without its headers, and flagged as too large; its key is returned if it is not too large itself, because ordering
-- needs it. This wrapper is skipped while the table has no TOASTed content and rows were small so far. `{head}` is the
-- statement of the table's shape, `{more}` its further columns.
SELECT id, create_time, topic, CASE WHEN NOT large OR octet_length(key) <= %(largest)s THEN key END AS key, value,
       CASE WHEN large THEN '{}' ELSE header_keys END AS header_keys,
       CASE WHEN large THEN '{}' ELSE header_values END AS header_values,
       partition, timestamp, CASE WHEN large AND flaw IS DISTINCT FROM 'replaced' THEN 'too-large' ELSE flaw END AS flaw{more}
  FROM (SELECT h.*, row_number() OVER (ROWS UNBOUNDED PRECEDING) AS place,
               greatest(octet_length(h.key), pg_column_size(h.header_keys), pg_column_size(h.header_values))
                 > %(largest)s AS large,
               sum(coalesce(octet_length(h.key), 0)::bigint + coalesce(octet_length(h.value), 0)
                   + coalesce(pg_column_size(h.header_keys), 0) + coalesce(pg_column_size(h.header_values), 0))
                 OVER (ROWS UNBOUNDED PRECEDING) AS running
          FROM (
{head}
          ) h) h
 WHERE running <= %(bytes)s OR place = 1
