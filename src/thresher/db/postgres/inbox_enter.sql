-- Enters a message that is processed for the first time. Index: the primary key. Where another transaction has entered it and
-- is open, this waits for its end.
INSERT INTO {table} (context, message_id) VALUES (%s, %s) ON CONFLICT (context, message_id) DO NOTHING RETURNING 1
