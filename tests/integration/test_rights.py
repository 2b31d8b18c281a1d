"""The printed grants are enough for roles that relay, write and operate; a missing one is named in the refusal."""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer

from tests.archive.outbox_place import DUE, OutboxPlace
from tests.faults.patient import PRODUCER
from tests.processes import eventually
from tests.relay.locked_place import LockedPlace
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place
from tests.tail.tailing import TailPlace
from thresher.archive.manifests import archive_ddl
from thresher.cli import dead
from thresher.cli.adopt import adopt
from thresher.cli.schema import check, print_ddl
from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.db.outbox_store import DeadFate, Fates
from thresher.db.postgres.store import PostgresStore
from thresher.db.postgres.topic_locks import create_locks
from thresher.db.problem import DatabaseRefused
from thresher.db.repeatable import repeatable
from thresher.devstack.stack import Stack
from thresher.election.lease import Lease
from thresher.election.settings import ElectionSettings
from thresher.harvest.harvest import Harvest
from thresher.outbox import Message, Outbox, Shape, check_schema, create_schema
from thresher.relay.leader.workload import RelayWorkload
from thresher.relay.names import companions
from thresher.spark.session.session import Session

_SECOND_ROW = (
    "INSERT INTO thresher_relay (name, outbox, outbox_id, system_id, term, mode, shards) "
    "SELECT name || '2', outbox, outbox_id, system_id, term, mode, shards FROM thresher_relay"
)


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


@pytest.fixture
def roles(place: Place) -> Iterator[dict[str, str]]:
    """Yield connection strings of three roles that may only connect. The outbox table does not exist yet."""
    place.sql("DROP TABLE outbox")
    names = ("relay_small", "writer_small", "operator_small")
    for name in names:
        place.sql(f"DROP ROLE IF EXISTS {name}")
        place.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
    yield {name: psycopg.conninfo.make_conninfo(place.dsn, user=name, password="right") for name in names}
    functions = place.sql("SELECT rolname FROM pg_roles WHERE rolname = 'thresher_' || current_database() || '_public'")
    for name in (*names, *(str(owner) for (owner,) in functions)):
        place.sql(f"DROP OWNED BY {name}")
        place.sql(f"DROP ROLE {name}")


def test_roles_with_the_printed_grants_write_and_relay(
    place: Place, roles: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    print_ddl(relay=True)
    place.sql(capsys.readouterr().out)
    for statement in ("INSERT INTO outbox (kafka_topic) VALUES ('t')", "SELECT FROM outbox", "DELETE FROM outbox"):
        for dsn in roles.values():
            with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    messages = [Message(topic=place.topic, key="k", value=str(n)) for n in range(7)]
    with psycopg.connect(roles["writer_small"]) as connection:
        for stash_all in (place.outbox.stash_many, lambda at, all_: place.outbox.stash(at, all_[0])):
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
                stash_all(connection, messages)
            assert "'thresher schema print --relay'" in refused.value.__notes__[0]
            connection.rollback()
    with pytest.raises(DatabaseRefused, match=r"permission denied.*; 'thresher schema print --relay' prints"):
        RelayWorkload(place.settings(dsn=roles["relay_small"])).take_over(str(uuid.uuid4()), lambda: True)

    named = place.settings().name
    print_ddl(relay=True, relay_role="relay_small", relay_name=named, writer_role="writer_small")
    place.sql(capsys.readouterr().out)
    with psycopg.connect(roles["writer_small"]) as connection:
        assert place.outbox.stash(connection, messages[0]) is not None
        place.outbox.stash_many(connection, messages[1:])
        place.outbox.stash(connection, Message(topic=place.topic, key="k", value=b"x" * 900_000))
    with psycopg.connect(roles["writer_small"]) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT kafka_value FROM outbox")
    with psycopg.connect(roles["relay_small"]) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        place.outbox.stash(connection, messages[0])
    kafka = {**place.settings().kafka, "message.max.bytes": 500_000}
    told = {"dsn": roles["relay_small"], "kafka": kafka, "delivery": "at-least-once", "settle": "stamp"}
    settings = place.settings(**told, archive_after_seconds=1, shards=1, producer_factory=PRODUCER)
    with Harvest(settings, policy=POLICY, election=ElectionSettings(lease_seconds=20.0)):
        assert [message.value() for message in place.read(7)] == [str(n).encode() for n in range(7)]
        eventually(lambda: place.sql("SELECT count(*) FROM outbox_archive") == [(7,)], RELAYED_SECONDS)
    assert place.sql("SELECT (SELECT count(*) FROM outbox_dead), (SELECT count(*) FROM outbox)") == [(1, 0)]
    # Another guarantee, layout and take-over, after an operator's decision.
    adopt(named, ds=roles["relay_small"])
    with psycopg.connect(roles["writer_small"]) as connection:
        place.outbox.stash(connection, Message(topic=place.topic, key="k", value="7"))
    with place.relaying(dsn=roles["relay_small"], shards=2) as relaying:
        assert place.read(8)[-1].value() == b"7"
        relaying.until(lambda: place.pending() == 0)
        relaying.undisturbed()


def test_an_earlier_versions_tables_and_grants_are_brought_up_to_date(
    place: Place, roles: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    named = place.settings().name
    print_ddl(relay=True)
    place.sql(capsys.readouterr().out)
    place.sql(
        "DROP INDEX thresher_relay_outbox_key; DROP TABLE thresher_lock, thresher_wait;"
        "GRANT SELECT, UPDATE, DELETE ON outbox TO relay_small; GRANT INSERT ON outbox TO writer_small;"
        "GRANT SELECT, INSERT, UPDATE ON thresher_relay TO relay_small;"
        "GRANT INSERT, DELETE ON outbox TO operator_small"
    )
    with pytest.raises(typer.Exit):
        check(ds=place.dsn)
    told = capsys.readouterr().out
    for table, why in (("lock", "missing"), ("wait", "missing"), ("relay", "made by an earlier version")):
        assert f'differs: "public"."thresher_{table}": {why}' in told
    taking = RelayWorkload(place.settings(dsn=roles["relay_small"]))
    with pytest.raises(DatabaseRefused, match=r'there is no table "public"."thresher_lock".*schema print --relay'):
        taking.take_over(str(uuid.uuid4()), lambda: True)

    page = Path("docs/operations.md").read_text()
    (revoked,) = re.findall(r"^REVOKE ALL ON shop.outbox, [^;]*;", page, re.MULTILINE)
    for written, here in (("shop.", ""), ("orders_relay", "relay_small"), ("orders_app", "writer_small")):
        revoked = revoked.replace(written, here)
    place.sql(revoked.replace("oncall", "operator_small"))
    print_ddl(
        relay=True,
        relay_role="relay_small",
        relay_name=named,
        writer_role="writer_small",
        operator_role="operator_small",
    )
    place.sql(capsys.readouterr().out)
    with pytest.raises(typer.Exit):
        check(ds=place.dsn)
    assert "differs" not in capsys.readouterr().out
    kept = "SELECT grantee, privilege_type FROM information_schema.role_table_grants WHERE table_name = 'outbox'"
    assert sorted(place.sql(f"{kept} AND grantee LIKE '%small'")) == [
        ("relay_small", "DELETE"),
        ("relay_small", "SELECT"),
    ]
    taking.take_over(str(uuid.uuid4()), lambda: True)


def test_an_earlier_versions_control_rows_become_one_for_each_outbox(place: Place) -> None:
    taking = RelayWorkload(place.settings())
    taking.take_over(str(uuid.uuid4()), lambda: True)
    place.sql("DROP INDEX thresher_relay_outbox_key")
    taking.take_over(str(uuid.uuid4()), lambda: True)
    with pytest.raises(psycopg.errors.UniqueViolation):
        place.sql(_SECOND_ROW)
    place.sql("DROP INDEX thresher_relay_outbox_key")
    place.sql(_SECOND_ROW)
    with pytest.raises(DatabaseRefused, match=r"two rows for one outbox.*Remove the row"):
        taking.take_over(str(uuid.uuid4()), lambda: True)


def test_a_relays_role_archives_to_files(
    place: Place, roles: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = OutboxPlace(place.dsn, tmp_path)
    at.fill()
    print_ddl(relay=True, relay_role="relay_small", relay_name="r")
    place.sql(capsys.readouterr().out)
    at.dsn = roles["relay_small"]
    assert at.archiver("files").run().rows == DUE
    assert len(at.archived_ids("files")) == DUE
    assert at.archiver("files").run().rows == 0


def test_a_tails_role_publishes_with_the_printed_rights(
    stack: Stack, place: Place, roles: dict[str, str], topic_prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = TailPlace(stack, place.dsn, f"{topic_prefix}tail-")
    try:
        print_ddl(relay=True, relay_role="relay_small", relay_name=at.settings().name)
        place.sql(capsys.readouterr().out)
        place.sql("ALTER ROLE relay_small REPLICATION")
        at.stash(Message(topic=at.topic, key="k", value="1"))
        place.sql("INSERT INTO outbox (kafka_topic) VALUES ('no topic')")
        lease = Lease(dsn=roles["relay_small"], name=at.settings().group, beside="outbox")
        lease.start()
        lease.wait(30)
        lease.stop()
        with at.tailing(dsn=roles["relay_small"]) as tailing:
            assert [message.value() for message in at.read(1)] == [b"1"]
            tailing.until(lambda: place.sql("SELECT count(*) FROM outbox_dead") == [(1,)])
            tailing.undisturbed()
    finally:
        at.drop_slot()


@pytest.mark.parametrize("shape", Shape)
def test_a_writer_needs_the_printed_grants_in_every_shape(
    place: Place, roles: dict[str, str], shape: Shape, capsys: pytest.CaptureFixture[str]
) -> None:
    place.sql("CREATE SCHEMA shop")
    print_ddl("box", "shop", shape, writer_role="writer_small")
    place.sql(capsys.readouterr().out)
    outbox = Outbox("box", schema="shop", shape=shape)
    with psycopg.connect(roles["writer_small"]) as connection:
        assert outbox.stash(connection, Message(topic="t", key="k")) is not None
        assert outbox.stash_many(connection, [Message(topic="t", key="k")]) == 1
    assert place.sql(f"SELECT count(*) FROM {TableName(table='box', schema='shop')}") == [(2,)]
    for role in ("relay_role", "operator_role"):
        with pytest.raises(InvalidInput, match="--relay"):
            print_ddl(**{role: "relay_small"})  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", Shape)
def test_an_operator_lists_shows_replays_and_drops_dead_rows(
    place: Place, roles: dict[str, str], shape: Shape, capsys: pytest.CaptureFixture[str]
) -> None:
    print_ddl(shape=shape, relay=True)
    place.sql(capsys.readouterr().out)
    print_ddl(shape=shape, grants=True, operator_role="operator_small")
    printed = capsys.readouterr().out
    assert "CREATE TABLE" not in printed
    place.sql(printed)
    for id_ in range(1, 6):
        place.sql(
            "INSERT INTO outbox_dead (id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values, "
            f"kind, reason, attempts, blocking) "
            f"VALUES ({id_}, now(), 't', 'k', '{{}}', '{{}}', 'rejected', 'x', 1, true)"
        )
    dsn = roles["operator_small"]
    options: dict[str, Any] = {"ds": dsn, "shape": shape}
    dead.list_rows(**options, as_json=True)
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 5
    dead.show(1, **options, as_json=True)
    assert json.loads(capsys.readouterr().out)["id"] == 1
    dead.replay([1, 2], **options)
    dead.drop([3], **options)
    dead.drop(every=True, yes=True, **options)
    assert place.sql("SELECT array_agg(id ORDER BY id) FROM outbox") == [([1, 2],)]
    assert place.sql("SELECT count(*) FROM outbox_dead") == [(0,)]
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT * FROM outbox")


@pytest.mark.parametrize("shape", Shape)
def test_a_relays_role_renews_a_dead_row_put_back_by_hand(
    dsn: str, shape: Shape, capsys: pytest.CaptureFixture[str]
) -> None:
    role = f"relay_{uuid.uuid4().hex[:8]}"
    own = psycopg.conninfo.make_conninfo(dsn, user=role, password="right")
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'".encode())
        try:
            print_ddl("box", shape=shape, relay=True, relay_role=role, relay_name="r")
            owner.execute(capsys.readouterr().out.encode())
            with owner.transaction():
                Outbox("box", shape=shape).stash(owner, Message(topic="t", key="k", value="newer"))
            created = "created_at AT TIME ZONE 'UTC'" if shape is Shape.DEIMOS else "create_time"
            found = owner.execute(
                "INSERT INTO box_dead (id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
                "kafka_header_values, kind, reason, attempts, blocking) "
                f"SELECT id, {created}, 't', 'k', 'older', '{{}}', '{{}}', 'rejected', 'x', 1, true FROM box "
                "RETURNING id, (extract(epoch FROM create_time) * 1000000)::bigint".encode()
            ).fetchall()
            ((id_, created_at),) = found
            dead = DeadFate(id_, created_at, "malformed", "why", 2, False)
            with closing(PostgresStore(own, TableName(table="box"), shape).session("t", locate=True)) as session:
                assert session.settlement.settle(Fates(ids=[], create_times=[], dead=[dead])) == 1
            renewed = owner.execute("SELECT convert_from(kafka_value::bytea, 'UTF8'), reason FROM box_dead").fetchall()
            assert renewed == [("newer", "why")]
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.parametrize("shape", [Shape.THRESHER, Shape.DEIMOS])
def test_a_role_with_the_printed_grants_shares_topics_by_locks(
    stack: Stack, dsn: str, topic_prefix: str, shape: Shape, capsys: pytest.CaptureFixture[str]
) -> None:
    place = LockedPlace(stack, dsn, topic_prefix, shape=shape)
    print_ddl(shape=shape, relay=True, topic_lock=True)
    place.sql(capsys.readouterr().out)
    print_ddl(shape=shape, grants=True, topic_lock=True, relay_role="locker_small", relay_name=place.settings().name)
    place.sql("DROP ROLE IF EXISTS locker_small; CREATE ROLE locker_small LOGIN PASSWORD 'right'")
    place.sql(capsys.readouterr().out)
    place.stash(*(Message(topic=place.topic, key="k", value=str(n)) for n in range(7)))
    own = psycopg.conninfo.make_conninfo(dsn, user="locker_small", password="right")
    try:
        with place.backend(dsn=own) as backend:
            place.until_sent(backend)
        assert [message.value() for message in place.read(7)] == [str(n).encode() for n in range(7)]
    finally:
        place.sql("DROP OWNED BY locker_small; DROP ROLE locker_small")


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("made", [True, False])
def test_printed_ddl_can_run_twice_without_duplicate_indexes(
    place: Place, shape: Shape, made: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    name = TableName(table='out"box', schema="shop")
    place.sql("DROP TABLE outbox; CREATE SCHEMA shop")
    if made:
        # As a relay and an archive create them: without index names.
        with psycopg.connect(place.dsn) as connection:
            create_schema(connection, name, shape)
            create_locks(connection, name, shape)
            for statement in (*companions(name, shape), *(archive_ddl(name) if shape is Shape.THRESHER else ())):
                connection.execute(statement.encode())
    indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'shop'"
    found = [place.sql(indexes)] if made else []
    print_ddl('out"box', "shop", shape, relay=True, topic_lock=True)
    printed = capsys.readouterr().out
    for _ in range(2):
        place.sql(printed)
        found.append(place.sql(indexes))
    assert len(set(map(str, found))) == 1
    with psycopg.connect(place.dsn) as connection:
        assert check_schema(connection, name, shape).usable


def test_an_index_name_that_is_too_long_is_omitted() -> None:
    assert repeatable(f'CREATE INDEX ON "{"t" * 58}" (id);') == f'CREATE INDEX ON "{"t" * 58}" (id);'
    assert repeatable(f'CREATE INDEX ON "{"t" * 56}" (id);') == (
        f'CREATE INDEX IF NOT EXISTS "{"t" * 56}_id_idx" ON "{"t" * 56}" (id);'
    )
