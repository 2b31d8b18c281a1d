-- The name of the role that owns the functions of a schema: roles belong to the whole server, so the name has database and
-- schema in it. A name that does not fit is a hash. An expression, known only where it is run.
(SELECT CASE WHEN pg_catalog.octet_length(derived.name) OPERATOR(pg_catalog.<=) {bytes} THEN derived.name
             ELSE pg_catalog.concat('thresher_', pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
                    derived.name, pg_catalog.getdatabaseencoding())), 'hex'), 32)) END
   FROM (SELECT pg_catalog.concat('thresher_', pg_catalog.current_database(), '_', {schema})) derived (name))
