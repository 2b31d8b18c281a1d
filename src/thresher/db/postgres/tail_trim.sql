-- Deletes old rows of a table that a tail reads. Only the first `rows` rows after `floor` are looked at. Index: the
-- primary key.
-- Returns how many rows were deleted, how many were looked at, and the new floor. Up to the floor, all rows stay for
-- long: their create time is far in the future, or they were written before the WAL was read. (A create time of this
-- moment is not far in the future: the row may have been committed after this transaction began.)
-- Fence: the transaction that wrote a row must be older than `xid`: the slot is confirmed beyond the commits of all
-- such transactions. It must not be older than `first_xid`: from this transaction on, all commits were read.
WITH head AS MATERIALIZED (
  SELECT h.id,
         h.create_time < pg_catalog.now() - pg_catalog.make_interval(secs => %(keep_seconds)s)
           AND pg_catalog.age(h.writer) > pg_catalog.age(%(xid)s::xid8::xid)
           AND pg_catalog.age(h.writer) <= pg_catalog.age(%(first_xid)s::xid8::xid) AS due,
         h.create_time > pg_catalog.now() + pg_catalog.make_interval(secs => %(far_seconds)s)
           OR pg_catalog.age(h.writer) > pg_catalog.age(%(first_xid)s::xid8::xid) AS stays
    FROM (SELECT o.id, {created} AS create_time, o.xmin AS writer
            FROM {table} o WHERE o.id > %(floor)s ORDER BY o.id LIMIT %(rows)s) h
), gone AS (
  DELETE FROM {table} d WHERE d.id = ANY (ARRAY(SELECT h.id FROM head h WHERE h.due)) RETURNING d.id
)
SELECT (SELECT count(*) FROM gone), count(*), coalesce(min(h.id) FILTER (WHERE NOT h.stays) - 1, max(h.id), %(floor)s)
  FROM head h
