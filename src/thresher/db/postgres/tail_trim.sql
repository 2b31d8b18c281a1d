-- Deletes old rows of a table that is read from the log; returns how many, how many it looked at, and up to which id all
-- have to stay for long: those whose time is far ahead (one of this moment is not: it may have been committed after
-- this transaction began), and those from before the log was read. Index: the primary key; only
-- its first entries behind an id are looked at. Fence: rows stay that are younger than the transaction, whose commit the
-- slot was confirmed beyond, and rows that are older than the first transaction of which all commits were read.
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
