-- The owner of a relation, or of one of its partitions; and of every function, operator and type that a trigger, a rule,
-- a policy, a default, a constraint, an index or a column of it uses, also by way of a domain or of another function.
-- Tells what each owner is. What belongs to the server itself is not recorded as used, and is left out. Membership is
-- looked up, because a superuser counts as a member of every role. Parameter: the relation's oid. Indexes: the
-- catalog's.
WITH RECURSIVE place AS (
  SELECT c.oid, c.relkind::text AS kind, c.relowner, n.nspowner, n.nspacl
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
   WHERE c.oid = ANY (%(table)s::oid || ARRAY(SELECT t.relid::oid FROM pg_catalog.pg_partition_tree(%(table)s::oid) t))
), ours (role) AS (
  SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = current_user
  UNION
  SELECT m.roleid FROM ours JOIN pg_catalog.pg_auth_members m ON m.member = ours.role
), named (role) AS (
  SELECT a.grantee
    FROM place CROSS JOIN LATERAL pg_catalog.aclexplode(place.nspacl) a
   WHERE a.privilege_type = 'CREATE' AND a.grantee <> 0
  UNION
  SELECT m.member FROM named JOIN pg_catalog.pg_auth_members m ON m.roleid = named.role
), part (class, object, name, place) AS (
  SELECT 'pg_class'::regclass, place.oid, 'a column', place.oid FROM place
  UNION ALL
  SELECT 'pg_trigger'::regclass, t.oid, 'trigger ' || t.tgname, place.oid
    FROM place JOIN pg_catalog.pg_trigger t ON t.tgrelid = place.oid AND NOT t.tgisinternal
  UNION ALL
  SELECT 'pg_rewrite'::regclass, r.oid, 'rule ' || r.rulename, place.oid
    FROM place JOIN pg_catalog.pg_rewrite r ON r.ev_class = place.oid
  UNION ALL
  SELECT 'pg_policy'::regclass, p.oid, 'policy ' || p.polname, place.oid
    FROM place JOIN pg_catalog.pg_policy p ON p.polrelid = place.oid
  UNION ALL
  SELECT 'pg_attrdef'::regclass, d.oid, 'column ' || a.attname, place.oid
    FROM place JOIN pg_catalog.pg_attrdef d ON d.adrelid = place.oid
    JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  UNION ALL
  SELECT 'pg_constraint'::regclass, k.oid, 'constraint ' || k.conname, place.oid
    FROM place JOIN pg_catalog.pg_constraint k ON k.conrelid = place.oid
  UNION ALL
  SELECT 'pg_class'::regclass, i.indexrelid, 'index ' || c.relname, place.oid
    FROM place JOIN pg_catalog.pg_index i ON i.indrelid = place.oid JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
), used (name, place, class, object) AS (
  SELECT part.name, part.place, d.refclassid, d.refobjid
    FROM part
    JOIN pg_catalog.pg_depend d ON d.classid = part.class AND d.objid = part.object
   WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
  UNION
  SELECT used.name, used.place, more.refclassid, more.refobjid
    FROM used
   CROSS JOIN LATERAL (
     SELECT d.refclassid, d.refobjid
       FROM pg_catalog.pg_depend d
      WHERE d.classid = used.class AND d.objid = used.object
      UNION ALL
     SELECT d.refclassid, d.refobjid
       FROM pg_catalog.pg_constraint k
       JOIN pg_catalog.pg_depend d ON d.classid = 'pg_constraint'::regclass AND d.objid = k.oid
      WHERE used.class = 'pg_type'::regclass AND k.contypid = used.object) more
   WHERE more.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
), owned (name, place, code, owner) AS (
  SELECT NULL, place.oid, NULL, place.relowner FROM place
  UNION ALL
  -- A rule belongs to the table's owner.
  SELECT part.name, part.place, 'tables', place.relowner
    FROM part JOIN place ON place.oid = part.place
   WHERE part.class = 'pg_rewrite'::regclass
  UNION ALL
  SELECT DISTINCT used.name, used.place, pg_catalog.pg_describe_object(used.class, used.object, 0),
         CASE used.class WHEN 'pg_proc'::regclass
                         THEN (SELECT p.proowner FROM pg_catalog.pg_proc p WHERE p.oid = used.object)
                         WHEN 'pg_operator'::regclass
                         THEN (SELECT o.oprowner FROM pg_catalog.pg_operator o WHERE o.oid = used.object)
                         ELSE (SELECT t.typowner FROM pg_catalog.pg_type t WHERE t.oid = used.object) END
    FROM used
)
SELECT place.kind, owned.name, owned.code, pg_catalog.pg_get_userbyid(owned.owner)::text, coalesce(r.rolsuper, false),
       owned.owner = d.datdba, owned.owner = place.nspowner, owned.owner IN (SELECT named.role FROM named),
       owned.owner IN (SELECT ours.role FROM ours)
  FROM owned
  JOIN place ON place.oid = owned.place
  JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
  LEFT JOIN pg_catalog.pg_roles r ON r.oid = owned.owner
 ORDER BY owned.name NULLS FIRST, owned.code
