"""Each printed role tries everything that it must not do, in a schema that the tables of another relay share."""

import contextlib
import json
import re
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.attacks import REFUSED, anywhere, try_all
from tests.tail.logged import close_server_functions
from thresher.cli import dead
from thresher.cli.schema import print_ddl
from thresher.cli.tail import slot
from thresher.db import TableName
from thresher.db.postgres.store import PostgresStore
from thresher.db.problem import DatabaseRefused
from thresher.delivery.leader.control_row import own_row
from thresher.delivery.problem import ForeignProgress
from thresher.devstack.stack import Stack
from thresher.election.lease import Lease
from thresher.election.problem import ElectionRefused
from thresher.outbox import Message, Outbox, Shape
from thresher.publisher.dispatch_table import DispatchRefused, DispatchTable, NotNow

_TABLES = (
    "orders", "orders_dead", "orders_archive", "orders_lock", "bills", "bills_dead", "bills_archive", "bills_lock",
    "thresher_relay", "thresher_lease", "thresher_lock", "thresher_wait", "thresher_archive_batches",
)  # fmt: skip
_OTHERS = ("bills", "bills_dead", "bills_archive", "bills_lock")


_FILLED = """
INSERT INTO NAME (kafka_topic, kafka_key) SELECT 't', 'k' FROM generate_series(1, 3);
INSERT INTO NAME_dead (id, create_time, kafka_topic, kafka_header_keys, kafka_header_values, kind, reason, attempts,
                       blocking)
VALUES (7, now(), 't', '{}', '{}', 'rejected', 'x', 1, true);
INSERT INTO NAME_archive
SELECT id + 100, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, NULL, NULL,
       now(), NULL, bucket FROM NAME;
INSERT INTO NAME_lock (topic) VALUES ('t');
INSERT INTO thresher_relay (name, outbox, outbox_id, system_id, term, mode, shards)
VALUES ('NAME', '"public"."NAME"', gen_random_uuid(), 's', gen_random_uuid(), 'immediate', 1);
INSERT INTO thresher_lease VALUES ('NAME', gen_random_uuid(), 1, now(), '1s');
INSERT INTO thresher_lock (name) VALUES ('archive "public"."NAME"'), ('topics "public"."NAME_lock"');
INSERT INTO thresher_wait VALUES ('NAME', 0, '{t}', '{1}', '{}', '{}', '{}', now());
INSERT INTO thresher_archive_batches (outbox, directory, directory_id, stem, ids, create_times, versions)
VALUES ('"public"."NAME"', '/a', gen_random_uuid(), 's', '{1}', '{now}', '{1}');
"""


class Scene:
    """Two outboxes with their relays in the schema public: the roles are those of `orders`, the rows are of both."""

    def __init__(self, dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.dsn = dsn
        self.mark = uuid.uuid4().hex[:8]
        self.functions = f"functions_{self.mark}"
        self.made: list[str] = [self.functions]
        self.tables = list(_TABLES)
        self.printed: Callable[[], str] = lambda: capsys.readouterr().out
        for name in ("orders", "bills"):
            print_ddl(name, relay=True, topic_lock=True)
            self.sql(self.printed())
            self.sql(_FILLED.replace("NAME", name))

    def sql(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(query.encode())
            return [] if cursor.description is None else cursor.fetchall()

    def role(self, kind: str, **options: object) -> str:
        """Make a role, give it the printed rights of this kind, and return its connection string."""
        name = f"{kind}_{self.mark}"
        self.made.insert(0, name)
        self.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
        given: dict[str, Any] = {f"{kind}_role": name, "functions_role": self.functions, **options}
        print_ddl("orders", grants=True, **given)
        self.sql(self.printed())
        return psycopg.conninfo.make_conninfo(self.dsn, user=name, password="right")

    def attack(self, dsn: str, *statements: str) -> None:
        """Check that each statement is refused, or finds nothing; and that nothing has changed after all of them."""
        before = self.contents()
        try_all(dsn, statements)
        assert self.contents() == before

    def contents(self) -> dict[str, list[tuple[object, ...]]]:
        found = {table: self.sql(f"SELECT t.*, xmin FROM {table} t ORDER BY 1, 2") for table in self.tables}
        found["policies"] = self.sql("SELECT * FROM pg_policies ORDER BY 1, 2, 3")
        found["publications"] = self.sql("SELECT *, xmin FROM pg_publication")
        found["objects"] = self.sql("SELECT relname, relrowsecurity, relowner, relacl::text FROM pg_class ORDER BY oid")
        found["sequences"] = self.sql("SELECT * FROM pg_sequences ORDER BY 1, 2")
        return found


@pytest.fixture
def scene(dsn: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    made = Scene(dsn, capsys)
    yield made
    for role in made.made:
        if made.sql(f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"):
            made.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def attacks_on_others(scene: Scene) -> list[str]:
    """Return what no relay and no tail of `orders` may do to the other relay, and to the tables that they share."""
    theirs = '\'"public"."bills"\''
    own = '\'"public"."orders"\''
    return [
        *(f"{what} FROM {table}" for table in _OTHERS for what in ("SELECT *", "DELETE")),
        "UPDATE bills SET leader_id = NULL",
        "UPDATE bills_dead SET blocking = false",
        "UPDATE bills_lock SET token = 0",
        "INSERT INTO bills_dead SELECT * FROM orders_dead",
        # Control rows, the secret of its own among them.
        "SELECT secret FROM thresher_relay WHERE name <> 'orders'",
        "UPDATE thresher_relay SET term = gen_random_uuid() WHERE name <> 'orders'",
        "UPDATE thresher_relay SET secret = gen_random_uuid()",
        "UPDATE thresher_relay SET outbox_id = gen_random_uuid()",
        f"UPDATE thresher_relay SET outbox = {theirs}",
        "UPDATE thresher_relay SET name = 'mine'",
        "DELETE FROM thresher_relay",
        (
            "INSERT INTO thresher_relay (name, outbox, outbox_id, system_id, term, mode, shards) "
            f"VALUES ('orders', {theirs}, gen_random_uuid(), 's', gen_random_uuid(), 'm', 1)"
        ),
        (
            "INSERT INTO thresher_relay (name, outbox, outbox_id, system_id, term, mode, shards) "
            f"VALUES ('third', {own}, gen_random_uuid(), 's', gen_random_uuid(), 'm', 1)"
        ),
        (
            "INSERT INTO thresher_relay (name, outbox, outbox_id, system_id, term, mode, shards) "
            f"VALUES ('bills', {own}, gen_random_uuid(), 's', gen_random_uuid(), 'm', 1) "
            "ON CONFLICT (name) DO UPDATE SET term = excluded.term"
        ),
        # Leases.
        "SELECT * FROM thresher_lease WHERE name <> 'orders'",
        "SELECT * FROM thresher_lease WHERE name <> 'orders' FOR UPDATE",
        "UPDATE thresher_lease SET until = 'infinity' WHERE name <> 'orders'",
        "UPDATE thresher_lease SET name = 'third'",
        "DELETE FROM thresher_lease",
        "INSERT INTO thresher_lease VALUES ('third', gen_random_uuid(), 1, 'infinity', '1s')",
        (
            "INSERT INTO thresher_lease VALUES ('bills', gen_random_uuid(), 1, 'infinity', '1s') "
            "ON CONFLICT (name) DO UPDATE SET until = 'infinity'"
        ),
        # Locks.
        "SELECT * FROM thresher_lock WHERE name LIKE '%bills%' FOR UPDATE",
        "UPDATE thresher_lock SET pid = 1 WHERE name LIKE '%bills%'",
        "UPDATE thresher_lock SET name = 'third'",
        "DELETE FROM thresher_lock",
        "INSERT INTO thresher_lock (name) VALUES ('archive third')",
        # What waits.
        "SELECT * FROM thresher_wait WHERE name <> 'orders'",
        "UPDATE thresher_wait SET topic_seconds = '{99}' WHERE name <> 'orders'",
        "UPDATE thresher_wait SET name = 'third'",
        "DELETE FROM thresher_wait",
        "INSERT INTO thresher_wait VALUES ('third', 0, '{}', '{}', '{}', '{}', '{}', now())",
        (
            "INSERT INTO thresher_wait VALUES ('bills', 0, '{t}', '{99}', '{}', '{}', '{}', now()) "
            "ON CONFLICT (name, shard) DO UPDATE SET topic_seconds = excluded.topic_seconds"
        ),
        # Manifests: read, because outboxes may share a directory, and not changed or locked.
        f"UPDATE thresher_archive_batches SET attempt = attempt + 1 WHERE outbox = {theirs}",
        f"SELECT 1 FROM thresher_archive_batches WHERE outbox = {theirs} FOR UPDATE",
        f"UPDATE thresher_archive_batches SET outbox = {theirs}",
        "DELETE FROM thresher_archive_batches",
        (
            "INSERT INTO thresher_archive_batches (outbox, directory, directory_id, stem, ids, create_times, versions) "
            f"VALUES ({theirs}, '/a', gen_random_uuid(), 's', '{{}}', '{{}}', '{{}}')"
        ),
        f"SET ROLE {scene.functions}",
    ]


def sees_its_own_rows_alone(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in ("thresher_relay", "thresher_lease", "thresher_wait"):
            assert connection.execute(f"SELECT name FROM {table}".encode()).fetchall() == [("orders",)]
        # Who switches policies off sees an error, not fewer rows.
        connection.execute("SET row_security = off")
        with pytest.raises(REFUSED, match="row-level security"):
            connection.execute("SELECT name FROM thresher_relay")


def test_a_relays_role_touches_no_other_relay_and_no_message(scene: Scene) -> None:
    relay = scene.role("relay", relay_name="orders", topic_lock=True)
    scene.role("operator")
    scene.attack(
        relay,
        # A relay may lock, truncate nothing, and write to what is its outbox's alone.
        *anywhere(*_TABLES, but=lambda each: each.startswith("LOCK") and " orders" in each),
        *attacks_on_others(scene),
        "INSERT INTO bills_archive SELECT * FROM orders_archive",
        # Its own messages: read, removed and marked, never written or changed.
        "INSERT INTO orders (kafka_topic) VALUES ('t')",
        *(f"UPDATE orders SET {column} = {column}" for column in ("id", "create_time", "kafka_topic", "kafka_value")),
        "DELETE FROM orders_dead",
        # It writes dead rows, and cannot make one stand for another row, or keep operators from the table.
        *(f"UPDATE orders_dead SET {column} = {column}" for column in ("id", "create_time")),
        "LOCK TABLE orders_dead IN SHARE MODE",
        "UPDATE orders_archive SET kafka_value = ''",
        "DELETE FROM orders_archive",
    )
    sees_its_own_rows_alone(relay)


def test_a_tails_role_of_an_outbox_in_the_wal_writes_no_message(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    tail = scene.role("relay", relay_name="orders")
    scene.role("operator")
    # As the page of rights says: the outbox and its archive stay empty, and are dropped.
    scene.sql("DROP TABLE orders, orders_archive")
    scene.tables = [table for table in _TABLES if table not in {"orders", "orders_archive"}]
    role, granted = psycopg.conninfo.conninfo_to_dict(tail)["user"], []
    for name in ("orders", "bills"):
        slot.key(ds=scene.dsn, outbox=name, schema="public")
        scene.tables.append(f"{name}_keys")
        printed = capsys.readouterr().err
        granted += re.findall("the tail's role needs: (GRANT .*) TO …", printed) if name == "orders" else []
        with psycopg.connect(scene.dsn, autocommit=True) as owner:
            close_server_functions(owner, TableName(table=name, schema="public"))
    assert len(granted) == 1
    scene.sql(f"{granted[0]} TO {role}; ALTER ROLE {role} REPLICATION; CREATE PUBLICATION orders_{scene.mark}")
    sealed = "SELECT inner_pad || outer_pad FROM orders_keys LIMIT 1"
    scene.attack(
        tail,
        *anywhere(*scene.tables),
        *attacks_on_others(scene),
        "DELETE FROM orders_dead",
        *(f"UPDATE orders_dead SET {column} = {column}" for column in ("id", "create_time")),
        # It has the keys with which messages are sealed, and no way to write a message.
        *(f"SELECT {name}_emit('x')" for name in ("orders", "bills")),
        *(
            f"SELECT pg_logical_emit_message({first}, 'thresher:{name}', {content}{last})"
            for name in ("orders", "bills")
            for first in ("true", "false")
            for content in (f"({sealed})", "'x'::text")
            for last in ("", ", true")
        ),
        *(
            statement.format(name=name)
            for name in ("orders", "bills")
            for statement in (
                "INSERT INTO {name}_keys (inner_pad, outer_pad) VALUES ('', '')",
                "UPDATE {name}_keys SET inner_pad = ''",
                "DELETE FROM {name}_keys",
                "SELECT * FROM {name}_keys FOR UPDATE",
                "ALTER FUNCTION {name}_emit(bytea) SECURITY INVOKER",
                "ALTER FUNCTION {name}_emit(bytea) OWNER TO CURRENT_USER",
                "CREATE OR REPLACE FUNCTION {name}_emit(content bytea) RETURNS pg_lsn LANGUAGE sql AS 'SELECT NULL'",
                "DROP FUNCTION {name}_emit(bytea)",
            )
        ),
        "SELECT * FROM bills_keys",
        # Without the publication, the tail would stand; with another table in it, it would publish other rows.
        f"ALTER PUBLICATION orders_{scene.mark} ADD TABLE bills",
        f"DROP PUBLICATION orders_{scene.mark}",
        f"CREATE PUBLICATION more_{scene.mark}",
        f"ALTER ROLE {role} SUPERUSER",
        f"CREATE ROLE more_{scene.mark}",
    )
    sees_its_own_rows_alone(tail)
    with psycopg.connect(tail) as connection:
        assert connection.execute("SELECT count(*) FROM orders_keys").fetchone() == (1,)


@pytest.mark.parametrize("shape", Shape)
def test_a_writers_role_chooses_no_id_and_no_stamp(dsn: str, shape: Shape, capsys: pytest.CaptureFixture[str]) -> None:
    role = f"writer_{uuid.uuid4().hex[:8]}"
    print_ddl("box", shape=shape, writer_role=role)
    printed = capsys.readouterr().out
    own = psycopg.conninfo.make_conninfo(dsn, user=role, password="right")
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'".encode())
        try:
            owner.execute(printed.encode())
            outbox = Outbox("box", shape=shape)
            with psycopg.connect(own) as connection:
                outbox.stash(connection, Message(topic="t", key="k", value="v"))
                outbox.stash_many(connection, [Message(topic="t", key="k", value="v")])
            named = {
                Shape.THRESHER: ("id", "create_time", "dispatched_time", "leader_id"),
                Shape.GOHARVEST: ("id", "leader_id"),
                Shape.DEIMOS: (),
            }[shape]
            content, topic = ("message", "topic") if shape is Shape.DEIMOS else ("kafka_value", "kafka_topic")
            attacks = [
                *(f"INSERT INTO box ({topic}, {column}) VALUES ('t', NULL)" for column in named),
                *(f"COPY box ({topic}, {column}) FROM STDIN" for column in named),
                f"INSERT INTO box ({topic}) VALUES ('t') RETURNING {content}",
                f"SELECT {content} FROM box",
                f"UPDATE box SET {topic} = 'u'",
                "DELETE FROM box",
                "SELECT setval('box_id_seq', 1000)",
                "SELECT id FROM box FOR UPDATE",
                *anywhere("box"),
            ]
            before = owner.execute("SELECT *, xmin FROM box ORDER BY id").fetchall()
            try_all(own, attacks)
            assert owner.execute("SELECT *, xmin FROM box ORDER BY id").fetchall() == before
            assert len(before) == 2
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_an_operators_role_only_calls_its_four_functions(scene: Scene) -> None:
    operator = scene.role("operator")
    scene.role("dispatcher")
    print_other = scene.sql("SELECT count(*) FROM pg_proc WHERE proname LIKE 'orders%' AND prosecdef")
    assert print_other == [(5,)]
    everyone = scene.sql(
        "SELECT p.proname FROM pg_proc p, aclexplode(p.proacl) a WHERE p.proname LIKE 'orders%' AND a.grantee = 0"
    )
    assert everyone == []
    owners = scene.sql(
        "SELECT DISTINCT r.rolcanlogin, p.proconfig FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner "
        "WHERE p.proname LIKE 'orders%'"
    )
    assert owners == [(False, ["search_path=pg_catalog, pg_temp"])]
    scene.attack(
        operator,
        *anywhere(*_TABLES),
        *(f"{what} FROM {table}" for table in _TABLES for what in ("SELECT *", "DELETE")),
        "INSERT INTO orders (kafka_topic) VALUES ('forged')",
        "INSERT INTO orders_dead SELECT * FROM orders_dead",
        "SELECT * FROM orders_relays()",
        "ALTER FUNCTION orders_dead_drop(text, text, bigint[]) OWNER TO CURRENT_USER",
        "CREATE OR REPLACE FUNCTION orders_dead_show(bigint) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        f"SET ROLE {scene.functions}",
    )


def test_planted_objects_are_not_used_by_functions(scene: Scene) -> None:
    operator = scene.role("operator")
    # As in a database of Postgres 14, whose schema public is open.
    scene.sql("GRANT CREATE ON SCHEMA public TO PUBLIC")
    planted = "$$ BEGIN RAISE EXCEPTION 'planted'; END $$"
    with psycopg.connect(operator, autocommit=True) as connection:
        for statement in (
            f"CREATE FUNCTION public.octet_length(bytea) RETURNS int LANGUAGE plpgsql AS {planted}",
            f"CREATE FUNCTION public.same(text, text) RETURNS bool LANGUAGE plpgsql AS {planted}",
            "CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.same)",
            "CREATE TEMP TABLE orders_dead (id bigint)",
            "SET search_path = pg_temp, public, pg_catalog",
        ):
            connection.execute(statement.encode())
        listed = connection.execute("SELECT id FROM public.orders_dead_list('t', 'rejected', NULL, 10)").fetchall()
        assert listed == [(7,)]
        assert connection.execute("SELECT public.orders_dead_drop('t', NULL, '{7}')").fetchone() == (1,)
    assert scene.sql("SELECT count(*) FROM orders_dead") == [(0,)]


def test_a_dispatchers_role_stamps_and_changes_nothing_else(scene: Scene) -> None:
    dispatcher = scene.role("dispatcher")
    scene.role("operator")
    scene.attack(
        dispatcher,
        *anywhere(*_TABLES),
        *(f"SELECT * FROM {table}" for table in _TABLES if table != "orders"),
        *(f"DELETE FROM {table}" for table in _TABLES),
        "INSERT INTO orders (kafka_topic) VALUES ('forged')",
        *(f"UPDATE orders SET {column} = {column}" for column in ("id", "kafka_value", "kafka_topic", "leader_id")),
        "UPDATE bills SET dispatched_time = now()",
        "UPDATE thresher_relay SET mode = 'immediate'",
        "SELECT * FROM orders_dead_list(NULL, NULL, NULL, 1::bigint)",
        f"SET ROLE {scene.functions}",
    )
    with psycopg.connect(dispatcher) as connection:
        assert connection.execute("SELECT * FROM orders_relays()").fetchall() == [("orders", "immediate")]


def own_row_of(scene: Scene, dsn: str, outbox: str, name: str) -> None:
    """Do what a relay does first: find or make its control row."""
    with closing(PostgresStore(dsn, TableName(table=outbox)).session("t", locate=True)) as session:
        own_row(session, name, term=str(uuid.uuid4()), mode="m", shards=1)


def test_no_policy_hides_another_reader_of_the_outbox(scene: Scene) -> None:
    second = scene.role("relay", relay_name="orders-2")
    with pytest.raises(ForeignProgress, match="is relayed under the name 'orders'"):
        own_row_of(scene, second, "orders", "orders-2")
    # Two relays that start at once find no row of each other. The constraint does.
    scene.sql("DELETE FROM thresher_relay WHERE name = 'orders'")
    barrier = threading.Barrier(8)

    def start(number: int) -> str:
        barrier.wait()
        with contextlib.suppress(ForeignProgress):
            own_row_of(scene, scene.dsn, "orders", f"orders-{number}")
            return f"orders-{number}"
        return ""

    with ThreadPoolExecutor(8) as threads:
        started = [name for name in threads.map(start, range(8)) if name]
    assert scene.sql("SELECT name FROM thresher_relay WHERE name LIKE 'orders%'") == [(name,) for name in started]


def test_a_name_that_a_hidden_row_has_is_refused_by_name(scene: Scene) -> None:
    relay = scene.role("relay", relay_name="bills")
    scene.sql("DELETE FROM thresher_relay WHERE name = 'orders'")
    with pytest.raises(ForeignProgress, match="the name 'bills' belongs to the relay of another outbox"):
        own_row_of(scene, relay, "orders", "bills")


def test_a_name_that_was_not_printed_is_asked_for(scene: Scene) -> None:
    relay = scene.role("relay", relay_name="printed")
    lease = Lease(dsn=relay, name="configured", beside="orders", grace_seconds=0.0)
    lease.start()
    try:
        with pytest.raises(ElectionRefused, match=r'"thresher_lease"; is `name` the printed --relay-name\? \'thresher'):
            lease.wait(30)
    finally:
        lease.stop()
    scene.sql("DELETE FROM thresher_relay")
    with pytest.raises(DatabaseRefused, match=r'"thresher_relay"; is `name` the printed --relay-name\? \'thresher'):
        own_row_of(scene, relay, "orders", "configured")


def test_a_dispatcher_learns_the_mode_or_sends_nothing(scene: Scene) -> None:
    dispatcher = scene.role("dispatcher")
    table = DispatchTable(
        lambda: psycopg.connect(dispatcher), TableName(table="orders"), connections=1, idle_seconds=9.0
    )
    found: Any = scene.sql("SELECT id, create_time FROM orders ORDER BY id")
    with closing(table):

        def sendable() -> int:
            with table.locked(found, within_seconds=9.0) as (rows, _):
                return len(rows)

        assert sendable() == 3
        scene.sql("UPDATE thresher_relay SET mode = 'exactly-once'")
        with pytest.raises(DispatchRefused, match="is no sweeper"):
            sendable()
        # Hidden by a lost policy, or not there yet: the dispatcher cannot tell, and waits.
        for change in ('DROP POLICY "modes are read by a function" ON thresher_relay', "DELETE FROM thresher_relay"):
            scene.sql(change)
            with pytest.raises(NotNow, match=r"no relay of .* has run yet"):
                sendable()
        scene.sql("DROP FUNCTION orders_relays()")
        with pytest.raises(DispatchRefused, match="--dispatcher-role"):
            sendable()


def test_a_dump_by_the_owner_keeps_rows_and_policies(scene: Scene, stack: Stack) -> None:
    relay = scene.role("relay", relay_name="orders")
    dump = [str(stack.postgres.binaries / "pg_dump"), "--schema=public"]
    # A role under a policy gets an error, not fewer rows.
    refused = subprocess.run([*dump, "--table=thresher_relay", relay], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "row-level security" in refused.stderr
    dumped = subprocess.run([*dump, "--clean", scene.dsn], capture_output=True, text=True, check=True).stdout
    before = {table: scene.sql(f"SELECT * FROM {table} ORDER BY 1, 2") for table in _TABLES}
    policies = "SELECT * FROM pg_policies ORDER BY 1, 2, 3"
    there = scene.sql(policies)
    program = [str(stack.postgres.binaries / "psql"), "--set=ON_ERROR_STOP=1", "--quiet", scene.dsn]
    subprocess.run(program, input=dumped, capture_output=True, text=True, check=True)
    assert {table: scene.sql(f"SELECT * FROM {table} ORDER BY 1, 2") for table in _TABLES} == before
    assert scene.sql(policies) == there
    scene.attack(relay, "SELECT secret FROM thresher_relay WHERE name <> 'orders'", "DELETE FROM thresher_relay")


def test_an_owner_without_superuser_rights_makes_roles_and_functions(scene: Scene) -> None:
    owner = f"owner_{scene.mark}"
    scene.made.append(owner)
    scene.sql(f"CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD 'right'; CREATE SCHEMA shop AUTHORIZATION {owner}")
    dsn = psycopg.conninfo.make_conninfo(scene.dsn, user=owner, password="right")
    with psycopg.connect(dsn) as connection:
        connection.execute(f"CREATE ROLE operator_{scene.mark} LOGIN PASSWORD 'right'".encode())
        scene.made.insert(0, f"operator_{scene.mark}")
        for _ in range(2):
            print_ddl("box", "shop", relay=True, operator_role=f"operator_{scene.mark}", functions_role=scene.functions)
            connection.execute(scene.printed().encode())
    own = psycopg.conninfo.make_conninfo(scene.dsn, user=f"operator_{scene.mark}", password="right")
    dead.list_rows(ds=own, outbox="box", schema="shop", as_json=True)
    assert json.loads(scene.printed())["rows"] == []
    try_all(own, ["SELECT * FROM shop.box_dead", "CREATE TABLE shop.planted (n int)"])
    members = "SELECT 1 FROM pg_auth_members WHERE roleid = to_regrole(%s) AND (inherit_option OR set_option)"
    assert scene.sql(members.replace("%s", f"'{scene.functions}'")) == []
    assert scene.sql(f"SELECT has_schema_privilege('{scene.functions}', 'shop', 'CREATE')") == [(False,)]
