-- Removes rows whose fate a committed progress record holds. Index: the primary key. The create time tells a row from
-- another that came back under its id. Repeating it changes nothing.
DELETE FROM {table} o
 USING unnest(%s::bigint[], %s::timestamptz[]) AS f(id, create_time)
 WHERE o.id = f.id AND o.create_time = f.create_time
