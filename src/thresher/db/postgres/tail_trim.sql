-- Deletes old rows of a table that is read from the log. Index: the primary key; only its first entries are looked at.
-- Fence: rows that are younger than the transaction, whose commit the slot was confirmed beyond, stay.
DELETE FROM {table} d
 WHERE d.id = ANY (ARRAY(
   SELECT h.id
     FROM (SELECT o.id, {created} AS create_time, o.xmin AS writer FROM {table} o ORDER BY o.id LIMIT %(rows)s) h
    WHERE h.create_time < pg_catalog.now() - pg_catalog.make_interval(secs => %(keep_seconds)s)
      AND pg_catalog.age(h.writer) > pg_catalog.age(%(xid)s::xid8::xid)))
