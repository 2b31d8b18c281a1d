-- What is wrong with a role that owns functions of a schema, and the statement that mends it; null if nothing is. Whoever
-- may act as the role, also by way of another role, reads and writes what the functions do. Since Postgres 16 the role that
-- made it is its admin, in whatever database. Members of a trusted role are trusted. No index: small shared tables.
WITH RECURSIVE owner AS (
  SELECT r.* FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) {role}
), trusted AS (
  SELECT r.oid
    FROM pg_catalog.pg_roles r
    JOIN pg_catalog.pg_namespace n ON n.nspname OPERATOR(pg_catalog.=) {schema}
    JOIN pg_catalog.pg_database d ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
   WHERE pg_catalog.pg_has_role(r.oid, n.nspowner, 'MEMBER') OR pg_catalog.pg_has_role(r.oid, d.datdba, 'MEMBER')
      OR r.rolname OPERATOR(pg_catalog.=) current_user
), held (member, role) AS (
  SELECT m.member, m.roleid FROM owner JOIN pg_catalog.pg_auth_members m ON m.roleid OPERATOR(pg_catalog.=) owner.oid
  UNION
  SELECT m.member, m.roleid
    FROM held JOIN pg_catalog.pg_auth_members m ON m.roleid OPERATOR(pg_catalog.=) held.member
   WHERE NOT EXISTS (SELECT FROM trusted WHERE trusted.oid OPERATOR(pg_catalog.=) held.member)
), fault (what) AS (
  SELECT pg_catalog.concat('ALTER ROLE ', pg_catalog.quote_ident(owner.rolname), ' NO', attribute.name)
    FROM owner
   CROSS JOIN LATERAL (VALUES ('LOGIN', owner.rolcanlogin), ('SUPERUSER', owner.rolsuper), ('BYPASSRLS', owner.rolbypassrls),
                              ('CREATEROLE', owner.rolcreaterole), ('CREATEDB', owner.rolcreatedb),
                              ('REPLICATION', owner.rolreplication)) attribute (name, given)
   WHERE attribute.given
   UNION
  SELECT pg_catalog.concat('REVOKE ', pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(held.role)), ' FROM ',
                           pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(held.member)), ' CASCADE')
    FROM held
   WHERE NOT EXISTS (SELECT FROM trusted WHERE trusted.oid OPERATOR(pg_catalog.=) held.member)
)
SELECT pg_catalog.string_agg(fault.what, '; ' ORDER BY fault.what) FROM fault
