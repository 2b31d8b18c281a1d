-- Whether the table of locks has all columns. Parameter: its quoted name.
SELECT count(*) = 8 FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = pg_catalog.to_regclass(%s) AND NOT a.attisdropped
   AND a.attname IN ('token', 'slot', 'parts', 'missing_at', 'waiting_at', 'waiting_id', 'reason',
                     'last_processed_at')
