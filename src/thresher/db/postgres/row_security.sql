-- Switches row level security on for tables that pipelines share: a role other than a table's owner sees and changes only
-- the rows that a policy gives it. Repeatable, and not done again: it waits for every session that uses the table, and
-- others wait behind it.
DO {quote}
DECLARE
  each pg_catalog.regclass;
BEGIN
  FOREACH each IN ARRAY ARRAY[{tables}]::pg_catalog.regclass[] LOOP
    IF NOT (SELECT c.relrowsecurity FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) each::pg_catalog.oid) THEN
      EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', each);
    END IF;
  END LOOP;
END
{quote};
