-- Makes functions that run with the rights of their owner, a role that nobody can log in as. Repeatable. All in one
-- statement: nobody can call a function before EXECUTE was revoked from PUBLIC. The role that runs it needs no more than
-- CREATEROLE: it becomes a member of the owner, and lets the owner create in the schema, until the block ends.
DO {quote}
DECLARE
  joins boolean;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) {owner_name}) THEN
    CREATE ROLE {owner} NOLOGIN;
  END IF;
  IF EXISTS (SELECT FROM pg_catalog.pg_roles
              WHERE rolname OPERATOR(pg_catalog.=) {owner_name} AND (rolcanlogin OR rolsuper OR rolcreaterole OR rolbypassrls)) THEN
    RAISE EXCEPTION 'the role % would own functions: it must be NOLOGIN and have no attributes', {owner_name};
  END IF;
  IF EXISTS (SELECT FROM pg_catalog.pg_proc p
              WHERE p.oid OPERATOR(pg_catalog.=) ANY (ARRAY[{signatures}]::pg_catalog.oid[])
                AND p.proowner OPERATOR(pg_catalog.<>)
                    (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) {owner_name})) THEN
    RAISE EXCEPTION 'another role owns a function with one of our names in the schema %: drop it first', {schema_name};
  END IF;
  joins := NOT pg_catalog.pg_has_role(current_user, {owner_name}, 'USAGE');
  IF joins THEN
    GRANT {owner} TO CURRENT_USER;
  END IF;
  GRANT CREATE, USAGE ON SCHEMA {schema} TO {owner};
{functions}
  REVOKE CREATE ON SCHEMA {schema} FROM {owner};
  IF joins THEN
    REVOKE {owner} FROM CURRENT_USER;
  END IF;
END
{quote};
