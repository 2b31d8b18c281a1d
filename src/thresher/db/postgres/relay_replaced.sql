-- Whether the table, or its file, is another than the one that recovery settled, by the identity that incarnation.sql
-- returns. Evaluated once per statement, and only if there is a row; it reads no rows. The statement holds a lock on
-- the table from its beginning, so all of its rows are from one file.
(SELECT n.identity <> coalesce(%(table)s::text, n.identity)
                    FROM (SELECT o.oid || '/' || pg_catalog.pg_relation_filenode(o.oid) AS identity
                            FROM (SELECT pg_catalog.to_regclass(%(outbox)s::text)::oid AS oid) o) n)
