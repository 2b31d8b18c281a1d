-- Restarts a lock's time. Index: topic. Fence: the token.
UPDATE {locks} SET locked_at = pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())
 WHERE topic = %(name)s AND token = %(token)s AND locked_by IS NOT NULL
