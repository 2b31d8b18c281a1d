-- Lets a role set the mark of rows in Deimos' shape, if the table has it.
DO {quote}
BEGIN
  IF EXISTS (SELECT FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = pg_catalog.to_regclass({quoted}) AND a.attname = 'session_id' AND NOT a.attisdropped) THEN
    GRANT UPDATE (session_id) ON {on} TO {role};
  END IF;
END
{quote};
