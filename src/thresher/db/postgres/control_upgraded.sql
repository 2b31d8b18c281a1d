-- Whether the table has all columns: an earlier version made it without the last. Parameter: its quoted name.
SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = pg_catalog.to_regclass(%s) AND a.attname = 'secret' AND NOT a.attisdropped)
