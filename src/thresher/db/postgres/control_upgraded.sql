-- Whether the table has the columns that control_upgrade adds. Parameter: its quoted name.
SELECT count(*) = 2 FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = pg_catalog.to_regclass(%s) AND a.attname IN ('secret', 'settled_on') AND NOT a.attisdropped
