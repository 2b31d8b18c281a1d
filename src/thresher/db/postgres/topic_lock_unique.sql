-- Whether a topic can have only one row. Parameter: the table's quoted name.
SELECT EXISTS (SELECT FROM pg_catalog.pg_index i
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
                WHERE i.indrelid = pg_catalog.to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
                  AND i.indnkeyatts = 1 AND a.attname = 'topic')
