-- Whether the table is another one, or has another file, than the one that recovery settled, as incarnation.sql tells them.
-- Found out once in a statement, and only if there is a row: no row is looked at for it. The statement holds a lock on the
-- table from its beginning, so that all of its rows are of that one.
(SELECT n.identity <> coalesce(%(table)s::text, n.identity)
                    FROM (SELECT o.oid || '/' || pg_catalog.pg_relation_filenode(o.oid) AS identity
                            FROM (SELECT pg_catalog.to_regclass(%(outbox)s::text)::oid AS oid) o) n)
