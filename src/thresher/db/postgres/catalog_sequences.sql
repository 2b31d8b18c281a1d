-- The sequences that the id is drawn from: the sequence of an identity column, or those that the column's default uses,
-- whether the column owns them or not. Parameter: the relation's oid, twice.
SELECT s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle, s.seqmax, c.relpersistence::text
  FROM pg_catalog.pg_sequence s
  JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
 WHERE s.seqrelid IN (
         SELECT d.objid
           FROM pg_catalog.pg_depend d
           JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
          WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
            AND d.refobjid = %s AND d.deptype = 'i' AND a.attname = 'id'
         UNION
         SELECT d.refobjid
           FROM pg_catalog.pg_attrdef f
           JOIN pg_catalog.pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
           JOIN pg_catalog.pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
          WHERE f.adrelid = %s AND d.refclassid = 'pg_class'::regclass AND a.attname = 'id')
