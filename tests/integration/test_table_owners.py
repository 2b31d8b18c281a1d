"""A table that a stranger made, or whose code a stranger may change, is used by no session of ours.

In Postgres 14 every login may create tables in the schema public. The tests' own role is a superuser, whom that harms
most: a stranger's trigger would run with all rights.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer

from tests.archive.outbox_place import OutboxPlace
from tests.capture.captured import COLUMNS
from tests.integration.test_strangers import login, role_of
from thresher.capture.configuration import capture_configured
from thresher.capture.problem import CaptureRefused
from thresher.capture.store.schema import create_schema as create_capture
from thresher.capture.store.schema import require_schema
from thresher.cli import schema
from thresher.db import TableName
from thresher.db.log_emitter import emitter_ddl
from thresher.db.postgres.catalog import own_table_problems
from thresher.db.postgres.replication.emitter import PostgresEmitter
from thresher.db.postgres.sessions import connect, connect_within
from thresher.db.postgres.store import PostgresStore
from thresher.db.problem import DatabaseRefused
from thresher.election.lease import Lease
from thresher.election.problem import ElectionRefused
from thresher.outbox import SchemaRefused, create_schema
from thresher.tail.log_source import LogSource
from thresher.tail.slot import emitter_problems

PLACED = TableName(table="outbox", schema="public")
_TRAP = """
CREATE TABLE public.trapped (who text, what text);
GRANT INSERT ON public.trapped TO PUBLIC;
CREATE FUNCTION public.trap() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.trapped VALUES (current_user, TG_TABLE_NAME); RETURN NEW; END $$;
"""


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> OutboxPlace:
    made = OutboxPlace(dsn, tmp_path)
    made.fill()
    made.sql("GRANT CREATE ON SCHEMA public TO PUBLIC")
    return made


@pytest.fixture
def stranger(place: OutboxPlace) -> Iterator[psycopg.Connection[Any]]:
    with login(place.dsn, "stranger") as own, psycopg.connect(own, autocommit=True) as connection:
        connection.execute(_TRAP)
        yield connection


def compete(place: OutboxPlace) -> None:
    lease = Lease(dsn=place.dsn, name="one", beside="outbox")
    lease.start()
    try:
        lease.wait(30)
    finally:
        lease.stop()


def take_over(place: OutboxPlace) -> None:
    store = PostgresStore(place.dsn, place.table, make=connect_within(10.0))
    with closing(store.session("thresher/one/1/d", locate=True)) as session:
        session.create_tables()
        session.topic_locks().create()


def archive_to(target: str) -> Callable[[OutboxPlace], None]:
    return lambda place: void(place.archiver(target).run())


def capture(place: OutboxPlace) -> None:
    keys = {"data_source": place.dsn, "topics": {"t": {"table": "entity", "columns": COLUMNS}}}
    settings = capture_configured({"name": "shop", "kafka": {"bootstrap.servers": "127.0.0.1:1"}, **keys}).settings
    place.sql("CREATE TABLE IF NOT EXISTS entity (id text PRIMARY KEY, total integer NOT NULL, note text)")
    with psycopg.connect(place.dsn) as connection:
        create_capture(connection, settings.tables, settings.mappings)
        require_schema(connection, settings.tables, settings.mappings)


def void(_: object) -> None:
    """Return nothing."""


@pytest.mark.parametrize(
    ("table", "columns", "use"),
    [
        (
            "thresher_lease",
            "name text PRIMARY KEY, holder uuid, token bigint, until timestamptz, span interval",
            compete,
        ),
        ("thresher_relay", "name text PRIMARY KEY, outbox text UNIQUE", take_over),
        ("thresher_lock", "name text PRIMARY KEY, pid integer, started timestamptz, role text", take_over),
        ("thresher_wait", "name text, shard integer", take_over),
        ("outbox_dead", "id bigint, create_time timestamptz", take_over),
        ("outbox_lock", "topic varchar UNIQUE", take_over),
        ("thresher_lock", "name text PRIMARY KEY, pid integer, started timestamptz, role text", archive_to("files")),
        ("thresher_archive_batches", "outbox text, directory text, finish_time timestamptz", archive_to("files")),
        ("outbox_archive", "LIKE outbox, archived_time timestamptz", archive_to("table")),
        ("thresher_captures", "name text PRIMARY KEY, term text", capture),
        ("entity", "id text PRIMARY KEY, total integer NOT NULL, note text", capture),
    ],
)
def test_a_strangers_table_is_refused_and_its_trigger_never_runs(
    place: OutboxPlace, stranger: psycopg.Connection[Any], table: str, columns: str, use: Callable[[OutboxPlace], None]
) -> None:
    if "LIKE outbox" in columns:
        place.sql("GRANT SELECT ON outbox TO PUBLIC")
    for statement in (
        f"CREATE TABLE public.{table} ({columns})",
        f"GRANT ALL ON public.{table} TO PUBLIC",
        f"CREATE TRIGGER t BEFORE INSERT OR UPDATE ON public.{table} FOR EACH ROW EXECUTE FUNCTION public.trap()",
    ):
        stranger.execute(statement.encode())
    with pytest.raises((DatabaseRefused, ElectionRefused, CaptureRefused)) as refused:
        use(place)
    assert f"belongs to {role_of(stranger.info.dsn)}, who could run code with our rights" in str(refused.value)
    assert table in str(refused.value)
    assert place.sql("SELECT * FROM trapped") == []


def test_a_strangers_outbox_is_refused_by_the_check(
    place: OutboxPlace, stranger: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    place.sql("DROP TABLE outbox")
    with psycopg.connect(stranger.info.dsn, password="strange") as own:
        create_schema(own, place.table)
    with pytest.raises(typer.Exit) as ended:
        schema.check(ds=place.dsn)
    assert ended.value.exit_code == 1
    assert "breaks: table: it belongs to stranger_" in capsys.readouterr().out
    with pytest.raises(SchemaRefused, match="it belongs to stranger_"):
        schema.create(ds=place.dsn)
    with pytest.raises(Exception, match="it belongs to stranger_"):
        place.archiver("table").run()


def test_the_check_names_a_strangers_table_beside_the_outbox(
    place: OutboxPlace, stranger: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tables = ("thresher_lease", "thresher_wait", "outbox_dead", "outbox_lock", "thresher_archive_batches")
    for table in tables:
        stranger.execute(f"CREATE TABLE public.{table} (name text)".encode())
    with pytest.raises(typer.Exit) as ended:
        schema.check(ds=place.dsn)
    assert ended.value.exit_code == 1
    told = capsys.readouterr().out
    for table in tables:
        assert f'breaks: "public"."{table}": it belongs to {role_of(stranger.info.dsn)}, who could run code' in told
    assert f'GRANT CREATE ON SCHEMA … TO "{role_of(stranger.info.dsn)}"' in told


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            "CREATE TRIGGER t BEFORE UPDATE ON ours FOR EACH ROW EXECUTE FUNCTION public.trap()",
            "trigger t uses function public.trap()",
        ),
        ("ALTER TABLE ours ADD a int DEFAULT public.seven()", "column a uses function public.seven()"),
        (
            "ALTER TABLE ours ADD b int GENERATED ALWAYS AS (public.seven()) STORED",
            "column b uses function public.seven()",
        ),
        ("ALTER TABLE ours ADD CHECK (n <> public.seven())", "constraint ours_n_check uses function public.seven()"),
        ("CREATE INDEX i ON ours ((n + public.seven()))", "index i uses function public.seven()"),
        (
            "CREATE INDEX i ON ours (n) WHERE n OPERATOR(public.===) 1",
            "index i uses operator public.===(integer,integer)",
        ),
        ("CREATE POLICY p ON ours USING (n = public.seven())", "policy p uses function public.seven()"),
        ("ALTER TABLE ours ADD c public.even", "a column uses type public.even"),
        ("CREATE DOMAIN few AS int CHECK (VALUE < public.seven()); ALTER TABLE ours ADD c few", "public.seven()"),
        (
            "CREATE FUNCTION eight() RETURNS int RETURN public.seven() + 1; ALTER TABLE ours ADD a int DEFAULT eight()",
            "column a uses function public.seven()",
        ),
        ("CREATE RULE r AS ON INSERT TO ours DO ALSO NOTIFY x", "rule r can rewrite what we do"),
        ("DROP TABLE ours; CREATE VIEW ours AS SELECT 1 AS n", "it is a view; a table is needed"),
        ("DROP TABLE ours; CREATE TABLE ours (n int) PARTITION BY RANGE (n)", "it is a partitioned table"),
    ],
)
def test_code_of_a_stranger_in_a_table_of_ours_is_named(
    place: OutboxPlace, stranger: psycopg.Connection[Any], change: str, found: str
) -> None:
    stranger.execute(
        "CREATE FUNCTION public.seven() RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 7';"
        "CREATE FUNCTION public.same(int, int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT $1 = $2';"
        "CREATE OPERATOR public.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = public.same);"
        "CREATE DOMAIN public.even AS int CHECK (VALUE % 2 = 0)"
    )
    place.sql("CREATE TABLE ours (n int)")
    with closing(connect(place.dsn, "tests")) as connection:
        assert own_table_problems(connection, '"public"."ours"') == ()
        place.sql(change)
        problems = own_table_problems(connection, '"public"."ours"')
    assert found in "; ".join(problems)


@pytest.mark.parametrize(
    ("admitting", "admitted"),
    [
        ("GRANT CREATE ON SCHEMA public TO PUBLIC", False),
        ("GRANT USAGE ON SCHEMA public TO {stranger}", False),
        ("GRANT CREATE ON SCHEMA public TO {stranger}", True),
        ("GRANT CREATE ON SCHEMA public TO {group}; GRANT {group} TO {stranger}", True),
        ("ALTER SCHEMA public OWNER TO {stranger}", True),
        ("ALTER DATABASE {database} OWNER TO {stranger}", True),
        ("GRANT {stranger} TO {own}", True),
        ("GRANT {own} TO {stranger}", False),
        ("ALTER ROLE {stranger} SUPERUSER", True),
    ],
)
def test_owners_are_admitted_by_rank_or_by_name(
    place: OutboxPlace, stranger: psycopg.Connection[Any], admitting: str, admitted: bool
) -> None:
    stranger.execute("CREATE TABLE public.ours (n int)")
    who = role_of(stranger.info.dsn)
    with login(place.dsn, "own") as own, login(place.dsn, "group") as group:
        names = {"stranger": who, "own": role_of(own), "group": role_of(group), "database": stranger.info.dbname}
        place.sql(admitting.format(**names))
        try:
            with closing(connect(own, "tests")) as connection:
                assert bool(own_table_problems(connection, '"public"."ours"')) is not admitted
        finally:
            place.sql(
                f"ALTER SCHEMA public OWNER TO pg_database_owner; ALTER ROLE {who} NOSUPERUSER; "
                f"ALTER DATABASE {stranger.info.dbname} OWNER TO CURRENT_USER"
            )


def test_a_table_that_is_not_there_has_no_problem(dsn: str) -> None:
    with closing(connect(dsn, "tests")) as connection:
        assert own_table_problems(connection, TableName(table="nothing", schema="public").quoted()) == ()


def test_a_strangers_keys_seal_no_message(place: OutboxPlace, stranger: psycopg.Connection[Any]) -> None:
    outbox = TableName(table="outbox")
    stranger.execute(emitter_ddl(outbox, "public").encode())
    with closing(connect(place.dsn, "tests")) as connection:
        found = PostgresEmitter(connection, outbox, PLACED).read()
        assert [each.mend for each in emitter_problems(found, LogSource(outbox=outbox)) if "belongs to" in each.detail]
        place.sql("ALTER TABLE outbox_keys OWNER TO CURRENT_USER")
        (why,) = PostgresEmitter(connection, outbox, PLACED).read().strangers
        assert f"is not {role_of(stranger.info.dsn)}, who owns" in why
