-- Makes functions that run with the rights of their owner, a role that nobody can log in as. Repeatable. All in one
-- statement: nobody can call a function before EXECUTE was revoked from PUBLIC, and the owner gets no right before it was
-- looked at. The role that runs it needs no more than CREATEROLE: it becomes a member of the owner, and lets the owner
-- create in the schema, until the block ends.
DO {quote}
DECLARE
  functions_owner CONSTANT pg_catalog.name := {owner};
  quoted_owner CONSTANT pg_catalog.text := pg_catalog.quote_ident(functions_owner);
  wrong pg_catalog.text;
  joins boolean;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) functions_owner) THEN
    EXECUTE pg_catalog.concat('CREATE ROLE ', quoted_owner, ' NOLOGIN');
  END IF;
  wrong := ({faults});
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION 'the role % would own functions, and others could act as it: name another with --functions-role, or let a superuser run %',
      functions_owner, wrong;
  END IF;
  SELECT pg_catalog.string_agg(p.oid::pg_catalog.regprocedure::pg_catalog.text, ', ') INTO wrong
    FROM pg_catalog.pg_proc p
   WHERE p.oid OPERATOR(pg_catalog.=) ANY (ARRAY[{signatures}]::pg_catalog.oid[])
     AND p.proowner OPERATOR(pg_catalog.<>)
         (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) functions_owner);
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION 'another role than % owns a function with one of our names in the schema %: drop it first (DROP FUNCTION %)',
      functions_owner, {schema_name}, wrong;
  END IF;
  joins := NOT pg_catalog.pg_has_role(current_user, functions_owner, 'USAGE');
  IF joins THEN
    BEGIN
      EXECUTE pg_catalog.concat('GRANT ', quoted_owner, ' TO CURRENT_USER');
    EXCEPTION WHEN insufficient_privilege THEN
      RAISE EXCEPTION 'the role % was made by another role than %: name one of your own with --functions-role, or let a superuser run this',
        functions_owner, current_user;
    END;
  END IF;
  EXECUTE pg_catalog.concat('GRANT CREATE, USAGE ON SCHEMA ', {quoted_schema}, ' TO ', quoted_owner);
{functions}
  EXECUTE pg_catalog.concat('REVOKE CREATE ON SCHEMA ', {quoted_schema}, ' FROM ', quoted_owner);
{rights}
  IF joins THEN
    EXECUTE pg_catalog.concat('REVOKE ', quoted_owner, ' FROM CURRENT_USER');
  END IF;
END
{quote};
