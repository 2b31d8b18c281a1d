"""What a stranger may plant in an open schema: operators, functions and types that shadow the server's own.

Each does what the server's own does, so that a test's own statements go on. But in a session with an application name
it leaves a trace and raises an error: the sessions of a test have no such name, those of Thresher and its callers do.
"""

import re
from pathlib import Path

import psycopg

import thresher.db

# Names that Thresher's statements call.
_CALLED = sorted(
    {
        name
        for path in (Path(thresher.db.__file__).parent / "postgres").glob("*.sql")
        for name in re.findall(r"\b([a-z_0-9]+)\(", path.read_text())
    }
)
# A session that would find what was planted before what is the server's.
OPEN_PATH = "-c search_path=public,pg_catalog"

_PLANTED = """
SET search_path = pg_catalog;
GRANT CREATE ON SCHEMA public TO PUBLIC;
CREATE ROLE {role};
CREATE SEQUENCE public.trapped;
GRANT USAGE ON SEQUENCE public.trapped TO PUBLIC;
SET ROLE {role};
CREATE FUNCTION public.trap(what text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  IF current_setting('application_name') <> '' THEN
    PERFORM nextval('public.trapped');
    RAISE EXCEPTION 'trapped: % in %', what, current_setting('application_name');
  END IF;
END $$;
DO $do$
DECLARE
  each record;
  made text;
BEGIN
  FOR each IN
    SELECT o.oprname AS name, l.typname::text AS one, r.typname::text AS two, t.typname::text AS result
      FROM pg_operator o
      JOIN pg_type l ON l.oid = o.oprleft JOIN pg_type r ON r.oid = o.oprright JOIN pg_type t ON t.oid = o.oprresult
     WHERE o.oprname = ANY ('{{=,<>,<,<=,>,>=,+,-,*,/,||,&,%,#}}')
       AND 'p' <> ALL (ARRAY[l.typtype, r.typtype, t.typtype]::text[])
    UNION ALL
    SELECT n, one, two, 'bool'
      FROM unnest('{{=,<>,<,<=,>,>=}}'::text[]) n
     CROSS JOIN (VALUES ('varchar', 'varchar'), ('varchar', 'text'), ('text', 'varchar'), ('oid', 'regclass'),
                        ('regclass', 'oid'), ('name', 'varchar'), ('varchar', 'name'), ('_text', '_text'),
                        ('oid', 'int4'), ('_int8', '_int8')) v (one, two)
    UNION ALL
    SELECT '&', 'int8', 'int4', 'int8'
  LOOP
    made := format('public.%I(pg_catalog.%I, pg_catalog.%I)', 'op_' || md5(each.name), each.one, each.two);
    EXECUTE format('CREATE FUNCTION %s RETURNS pg_catalog.%I LANGUAGE plpgsql AS %L', made, each.result,
      format('BEGIN PERFORM public.trap(%L); RETURN $1 OPERATOR(pg_catalog.%s) $2; END',
             format('%s (%s, %s)', each.name, each.one, each.two), each.name));
    EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = pg_catalog.%I, RIGHTARG = pg_catalog.%I, '
                   'FUNCTION = public.%I)', each.name, each.one, each.two, 'op_' || md5(each.name));
  END LOOP;
  FOR each IN
    SELECT p.proname AS name, p.proretset AS several, t.typname::text AS result,
           ARRAY(SELECT a.typname::text FROM unnest(p.proargtypes) WITH ORDINALITY u (oid, place)
                   JOIN pg_type a ON a.oid = u.oid ORDER BY place) AS types
      FROM pg_proc p JOIN pg_type t ON t.oid = p.prorettype
     WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0
       AND p.proname = ANY ('{called}') AND t.typtype <> 'p' AND p.proargmodes IS NULL
       AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) u (oid) JOIN pg_type a ON a.oid = u.oid WHERE a.typtype = 'p')
    UNION ALL
    SELECT 'unnest', true, of, ARRAY['_' || of] FROM unnest('{{text,bytea,int8,timestamptz,bool,uuid}}'::text[]) of
    UNION ALL
    SELECT 'array_ndims', false, 'int4', ARRAY['_' || of] FROM unnest('{{text,bytea}}'::text[]) of
    UNION ALL
    SELECT 'num_nulls', false, 'int4', types
      FROM (VALUES (ARRAY['timestamptz']), (ARRAY['timestamptz', 'uuid'])) v (types)
    UNION ALL
    SELECT 'num_nonnulls', false, 'int4', ARRAY['timestamptz']
  LOOP
    made := format('public.%I(%s)', each.name,
                   (SELECT string_agg(format('pg_catalog.%I', a), ', ' ORDER BY n)
                      FROM unnest(each.types) WITH ORDINALITY u (a, n)));
    EXECUTE format('CREATE FUNCTION %s RETURNS %s pg_catalog.%I LANGUAGE plpgsql AS %L', made,
      CASE WHEN each.several THEN 'SETOF' END, each.result,
      format('BEGIN PERFORM public.trap(%L); RETURN %s pg_catalog.%I(%s); END', made,
             CASE WHEN each.several THEN 'QUERY SELECT * FROM' END, each.name,
             (SELECT string_agg('$' || n, ', ' ORDER BY n) FROM generate_series(1, cardinality(each.types)) n)));
  END LOOP;
END $do$;
CREATE FUNCTION public.counted(bigint) RETURNS bigint LANGUAGE plpgsql AS
  $$ BEGIN PERFORM public.trap('count(*)'); RETURN $1 OPERATOR(pg_catalog.+) 1::bigint; END $$;
CREATE AGGREGATE public.count(*) (SFUNC = public.counted, STYPE = bigint, INITCOND = '0');
CREATE FUNCTION public.is_fine(pg_catalog.text, what text) RETURNS bool LANGUAGE plpgsql AS
  $$ BEGIN PERFORM public.trap(what); RETURN true; END $$;
CREATE DOMAIN public.text AS pg_catalog.text CHECK (public.is_fine(VALUE, 'type text'));
CREATE DOMAIN public.bytea AS pg_catalog.bytea CHECK (public.is_fine('', 'type bytea'));
CREATE DOMAIN public.uuid AS pg_catalog.uuid CHECK (public.is_fine('', 'type uuid'));
RESET ROLE;
"""


class Planted:
    """A database in which a stranger has planted what it may."""

    def __init__(self, dsn: str, role: str) -> None:
        self._dsn = dsn
        called = "{" + ",".join(_CALLED) + "}"
        with psycopg.connect(dsn) as connection:
            connection.execute(_PLANTED.format(role=role, called=called).encode())

    @property
    def dsn(self) -> str:
        """A connection string by which what was planted is found first, and which leaves traces."""
        return psycopg.conninfo.make_conninfo(self._dsn, options=OPEN_PATH, application_name="caller")

    def traces(self) -> int:
        """Return how often anything that was planted ran under somebody else's rights."""
        with psycopg.connect(self._dsn) as connection:
            row = connection.execute("SELECT last_value, is_called FROM public.trapped").fetchone()
        assert row is not None
        return int(row[0]) if row[1] else 0
