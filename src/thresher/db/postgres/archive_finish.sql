-- Empties a manifest whose rows have left the outbox: what stays says which file has them. Fence: archive_hold before it.
UPDATE {batches}
   SET finish_time = pg_catalog.clock_timestamp(), row_count = %(rows)s,
       first_id = %(first)s, last_id = %(last)s,
       ids = '{}', create_times = '{}', versions = '{}'
 WHERE batch = %(batch)s
