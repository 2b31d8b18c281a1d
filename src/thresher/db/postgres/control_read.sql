-- The row of a relay. Index: the primary key.
SELECT outbox, outbox_id::text, system_id, term::text, mode, shards, progress_topic_id, term_time, secret::text, settled_on
  FROM {table} WHERE name = %s
