-- The columns of the archive's table. Parameter: its quoted name.
SELECT attname
  FROM pg_catalog.pg_attribute
 WHERE attrelid = pg_catalog.to_regclass(%s) AND attnum > 0 AND NOT attisdropped
