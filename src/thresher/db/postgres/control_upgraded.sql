-- Whether the table has the columns and the index that control_upgrade adds. Parameter: its quoted name.
SELECT count(*) = 2 AND EXISTS (
         SELECT FROM pg_catalog.pg_index i
           JOIN pg_catalog.pg_attribute o ON o.attrelid = i.indrelid AND o.attnum = i.indkey[0]
          WHERE i.indrelid = pg_catalog.to_regclass(%(table)s) AND i.indisunique AND i.indisvalid AND i.indimmediate
            AND i.indnkeyatts = 1 AND i.indpred IS NULL AND o.attname = 'outbox'
       )
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = pg_catalog.to_regclass(%(table)s) AND a.attname IN ('secret', 'settled_on') AND NOT a.attisdropped
