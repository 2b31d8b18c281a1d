-- The file that a table is in: truncating makes another, and so does whatever rewrites it.
SELECT pg_catalog.pg_relation_filenode(%s::regclass)::bigint
