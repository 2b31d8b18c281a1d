-- Deletes a batch of the oldest rows. Index: (received_time). now() is constant within the statement, so the index scan
-- ends where younger rows begin.
DELETE FROM {table}
 WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(
   SELECT ctid FROM {table}
    WHERE received_time OPERATOR(pg_catalog.<) (pg_catalog.now() OPERATOR(pg_catalog.-) pg_catalog.make_interval(secs => %s))
    ORDER BY received_time
    LIMIT %s
      FOR UPDATE SKIP LOCKED
 ))
