-- A text that changes whenever inserts into a table may have bypassed a publication: when the publication, the table's
-- membership in it, or the table was changed or replaced. Reads catalogs only, by their indexes. Publications of whole
-- schemas count as membership; other tables do not matter.
SELECT p.oid || '/' || p.xmin || '/' || coalesce(m.members, '') || '/' || t.oid
  FROM pg_catalog.pg_publication p
 CROSS JOIN (SELECT coalesce(pg_catalog.to_regclass(%(table)s)::oid, 0) AS oid) t
 CROSS JOIN LATERAL (
   SELECT pg_catalog.string_agg(d.objid::text, ',' ORDER BY d.objid) AS members
     FROM pg_catalog.pg_depend d
     LEFT JOIN pg_catalog.pg_publication_rel r
       ON d.classid = 'pg_catalog.pg_publication_rel'::regclass AND r.oid = d.objid
    WHERE d.refclassid = 'pg_catalog.pg_publication'::regclass AND d.refobjid = p.oid
      AND (r.oid IS NULL OR r.prrelid = t.oid)) m
 WHERE p.pubname = %(name)s
