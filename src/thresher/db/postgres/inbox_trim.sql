-- Deletes a batch of the oldest rows. Index: (received_time). now() is constant within the statement, so the index scan
-- ends where younger rows begin.
DELETE FROM {table}
 WHERE ctid = ANY (ARRAY(
   SELECT ctid FROM {table}
    WHERE received_time < pg_catalog.now() - pg_catalog.make_interval(secs => %s)
    ORDER BY received_time
    LIMIT %s
      FOR UPDATE SKIP LOCKED
 ))
