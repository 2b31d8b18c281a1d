"""Operators, functions and types that a stranger has planted in an open schema are used by no session of Thresher.

The sessions of callers find what was planted first, too: there, no statement of Thresher uses it either.
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import typer

from tests.archive.outbox_place import DUE, OutboxPlace
from tests.capture.captured import CapturedOrders, captured
from tests.planted import Planted
from tests.processes import eventually
from tests.relay.dispatched import Place as DispatchPlace
from tests.relay.locked_place import LockedPlace
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place
from tests.tail.tailing import TailPlace
from thresher.capture.publishing import EntityPublisher
from thresher.cli import dead, inbox, schema
from thresher.cli.adopt import adopt
from thresher.cli.tail import slot
from thresher.db import TableName
from thresher.db.postgres.sessions import connect, explained, resolved
from thresher.db.problem import DatabaseRefused
from thresher.devstack.stack import Stack
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.harvest import Harvest
from thresher.inbox import Inbox
from thresher.inbox.dead import InboxRecord, dead_messages, process_again, set_aside
from thresher.inbox.schema import create_inbox
from thresher.outbox import Limits, Message, Outbox, Shape, create_schema
from thresher.publisher import Cleared, Dispatcher
from thresher.spark.session.session import Session
from thresher.tail.settings import Via


@pytest.fixture
def stranger(dsn: str) -> Iterator[str]:
    """The name of a role that plants in the schema public."""
    role = f"stranger_{uuid.uuid4().hex[:8]}"
    yield role
    with psycopg.connect(dsn) as connection:
        connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def test_a_trap_leaves_a_trace(dsn: str, stranger: str) -> None:
    planted = Planted(dsn, stranger)
    for statement in ("SELECT 'a'::varchar = 'b'::varchar", "SELECT now()", "SELECT 'a'::text", "SELECT count(*)"):
        with psycopg.connect(planted.dsn) as connection, pytest.raises(psycopg.Error, match="trapped"):
            connection.execute(statement.encode())
    assert planted.traces() == 4


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_relay_and_its_lease_use_nothing_planted(
    stack: Stack, spark: Session, dsn: str, stranger: str, topic_prefix: str, delivery: str
) -> None:
    place = Place(stack, dsn, topic_prefix)
    planted = Planted(dsn, stranger)
    place.stash(*(Message(topic=place.topic, key="k", value=str(n)) for n in range(7)))
    place.sql("INSERT INTO outbox (kafka_topic) VALUES ('no topic')")
    settings = place.settings(dsn=planted.dsn, delivery=delivery, settle="stamp", archive_after_seconds=1, shards=1)
    with Harvest(settings, policy=POLICY, election=ElectionSettings(kind=ElectionKind.LEASE, lease_seconds=20.0)):
        assert [message.value() for message in place.read(7)] == [str(n).encode() for n in range(7)]
        eventually(lambda: place.sql("SELECT count(*) FROM outbox_archive") == [(7,)], RELAYED_SECONDS)
        eventually(lambda: place.sql("SELECT count(*) FROM outbox_dead") == [(1,)], RELAYED_SECONDS)
    adopt(settings.name, ds=planted.dsn)
    dead.list_rows(ds=planted.dsn)
    ((id_,),) = place.sql("SELECT id FROM outbox_dead")
    dead.show(id_, ds=planted.dsn)
    dead.replay([id_], ds=planted.dsn)
    assert place.pending() == 1
    assert planted.traces() == 0


def test_topic_locks_use_nothing_planted(stack: Stack, dsn: str, stranger: str, topic_prefix: str) -> None:
    place = LockedPlace(stack, dsn, topic_prefix)
    planted = Planted(dsn, stranger)
    place.stash(*(Message(topic=place.topic, key="k", value=str(n)) for n in range(7)))
    with place.backend(dsn=planted.dsn) as backend:
        place.until_sent(backend)
    assert planted.traces() == 0


def test_an_archive_uses_nothing_planted(dsn: str, stranger: str, tmp_path: Path) -> None:
    place = OutboxPlace(dsn, tmp_path)
    place.fill()
    planted = Planted(dsn, stranger)
    place.dsn = planted.dsn
    assert place.archiver("files").count() == DUE
    assert place.archiver("files").run().rows == DUE
    place.dsn = dsn
    place.fill()
    place.dsn = planted.dsn
    assert place.archiver("table").run().rows == DUE
    assert planted.traces() == 0


@pytest.mark.parametrize("via", Via)
def test_a_tail_uses_nothing_planted(
    stack: Stack, spark: Session, dsn: str, stranger: str, topic_prefix: str, via: Via
) -> None:
    place = TailPlace(stack, dsn, topic_prefix, via)
    try:
        planted = Planted(dsn, stranger)
        with psycopg.connect(planted.dsn) as caller:
            place.outbox.stash(caller, Message(topic=place.topic, key="k", value="1"))
            place.outbox.stash_many(caller, [Message(topic=place.topic, key="k", value=str(n)) for n in (2, 3)])
        with place.tailing(dsn=planted.dsn, keep_seconds=0.0 if via is Via.TABLE else None) as tailing:
            assert [message.value() for message in place.read(3)] == [b"1", b"2", b"3"]
            if via is Via.TABLE:
                tailing.until(lambda: place.pending() == 0)
            tailing.undisturbed()
        with pytest.raises(typer.Exit) as ended:
            slot.check(ds=planted.dsn, via=slot.Via(via), slot=place.slot)
        assert ended.value.exit_code == 0
        assert planted.traces() == 0
    finally:
        place.drop_slot()


def test_a_capture_uses_nothing_planted(stack: Stack, spark: Session, dsn: str, stranger: str, tmp_path: Path) -> None:
    orders = CapturedOrders(stack.kafka.bootstrap, dsn)
    planted = Planted(dsn, stranger)
    orders.keys["data_source"] = planted.dsn
    with captured(orders, election="lease") as _:
        orders.publish(("a", 1), ("b", 2), ("bad", b"{"))
        orders.await_rows({"a": 1, "b": 2})
        orders.publish(("a", None))
        orders.await_rows({"b": 2})
        kafka = {"bootstrap.servers": stack.kafka.bootstrap}
        with EntityPublisher(kafka, planted.dsn, capture="shop", schema="public") as publisher:
            publisher.publish_and_wait(Message(topic=orders.topic, key="c", value=json.dumps({"total": 3})), 60.0)
        eventually(lambda: len(orders.dead()) == 1, RELAYED_SECONDS)
    assert planted.traces() == 0


def test_an_inbox_in_a_callers_transaction_uses_nothing_planted(dsn: str, stranger: str) -> None:
    own, name = Inbox(schema="public"), Inbox(schema="public").name
    with psycopg.connect(dsn) as connection:
        create_inbox(connection, name)
    planted = Planted(dsn, stranger)
    record = InboxRecord(topic="t", partition=0, offset=1, key=b"k", value=b"v", headers=(("h", b"1"),))
    with psycopg.connect(planted.dsn) as caller:
        for first in (True, False):
            with own.once(caller, "m1", context="billing") as found:
                assert found is first
        set_aside(caller, name, record, context="billing", message_id="m2", reason="x", attempts=1)
        (message,) = dead_messages(caller, name, context="billing")
        assert process_again(caller, name, message, lambda *_: None)
        caller.commit()
        assert own.trim(caller, 0.0) == 1
        assert caller.execute("SHOW search_path").fetchone() == ("public,pg_catalog",)
    assert planted.traces() == 0


@pytest.mark.parametrize("shape", Shape)
def test_a_writer_in_a_callers_transaction_uses_nothing_planted(dsn: str, stranger: str, shape: Shape) -> None:
    outbox = Outbox(schema="public", shape=shape, limits=Limits(outstanding=100))
    with psycopg.connect(dsn) as connection:
        create_schema(connection, outbox.name, shape)
    planted = Planted(dsn, stranger)
    with psycopg.connect(planted.dsn) as caller:
        message = Message(topic="t", key="k", value="v")
        outbox.stash(caller, message)
        outbox.stash_many(caller, [message] * 3)
        caller.commit()
        assert caller.execute("SHOW search_path").fetchone() == ("public,pg_catalog",)
    assert planted.traces() == 0


def test_a_dispatcher_uses_nothing_planted(stack: Stack, dsn: str, stranger: str) -> None:
    place = DispatchPlace(stack, dsn)
    place.sql(
        "CREATE TABLE thresher_relay (name text, outbox text, mode text);"
        "INSERT INTO thresher_relay VALUES ('r', '\"public\".\"outbox\"', 'immediate')"
    )
    planted = Planted(dsn, stranger)
    place.outbox = outbox = Outbox(schema="public")
    receipts = place.stash(range(3))
    with Dispatcher(lambda: psycopg.connect(planted.dsn), place.kafka, outbox=outbox) as dispatcher:
        assert dispatcher.clear(receipts) == Cleared(sent=3)
    assert place.pending() == 0
    assert planted.traces() == 0


@pytest.mark.parametrize("shape", Shape)
def test_commands_create_and_check_tables_with_nothing_planted(dsn: str, stranger: str, shape: Shape) -> None:
    planted = Planted(dsn, stranger)
    schema.create(ds=planted.dsn, shape=shape, topic_lock=True)
    inbox.create(ds=planted.dsn)
    with pytest.raises(typer.Exit) as ended:
        schema.check(ds=planted.dsn, shape=shape)
    assert ended.value.exit_code == 0
    with pytest.raises(typer.Exit) as ended:
        inbox.check(ds=planted.dsn)
    assert ended.value.exit_code == 0
    assert planted.traces() == 0


def test_a_lookup_session_uses_nothing_planted(dsn: str, stranger: str) -> None:
    planted = Planted(dsn, stranger)
    named, found = TableName(table="nothing"), TableName(table="nothing", schema="public")
    assert resolved(planted.dsn, "relay/look", named) == (found,)
    with closing(connect(planted.dsn, "relay/look")) as connection:
        assert connection.execute("SHOW search_path").fetchone() == ("pg_catalog,pg_temp",)
        connection.execute("SELECT 'a'::varchar = 'b'::varchar, now()")
    assert planted.traces() == 0


def test_a_triggers_function_without_a_path_of_its_own_is_explained(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE orders (n int); CREATE TABLE seen (n int);"
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN INSERT INTO seen VALUES (NEW.n); RETURN NEW; END$$;"
            "CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note()"
        )
    insert = "INSERT INTO public.orders VALUES (1)"
    with closing(connect(dsn, "relay/t")) as own:
        wanted = r"function public\.note\(\).*ALTER FUNCTION … SET search_path"
        with pytest.raises(DatabaseRefused, match=wanted), explained():
            own.execute(insert)
        own.execute("ALTER FUNCTION public.note() SET search_path = public")
        own.execute(insert)
