"""How long a dispatcher waits: beside other relays, and when brokers, database or its own process fail."""

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import datetime
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError

from tests.processes import eventually
from tests.relay.dispatched import AWAY, MANY, NAME, Place
from tests.relay.relaying import tried_again
from thresher.cli.schema import print_ddl
from thresher.db import TableName, statement
from thresher.db.postgres.store import PostgresSession, PostgresStore
from thresher.db.postgres.topic_locks import create_locks
from thresher.db.problem import DatabaseLost
from thresher.devstack.stack import Stack
from thresher.kafka.problem import BrokerLost
from thresher.outbox import Message, Receipt, Shape
from thresher.publisher import Cleared, Dispatcher, DispatchRefused
from thresher.publisher.dispatch_table import DispatchTable
from thresher.publisher.kafka_backend import KafkaBackend
from thresher.relay.leader import take_over as take_over_module
from thresher.relay.settings import Coordination, Delivery, Dispatch, Settings, Settling
from thresher.relay.topic_lock.joining import join


@pytest.fixture
def place(stack: Stack, dsn: str) -> Place:
    return Place(stack, dsn)


@pytest.fixture
def dispatcher(place: Place) -> Iterator[Dispatcher]:
    with place.dispatcher() as made:
        yield made


def relay(place: Place, mode: str) -> None:
    """Write the control row of a relay in this mode."""
    place.sql(statement("control_create", TableName(table="thresher_relay")))
    place.sql(
        "INSERT INTO thresher_relay (name, outbox, outbox_id, system_id, term, mode, shards) "
        "VALUES ('r', '\"public\".\"outbox\"', gen_random_uuid(), 's', gen_random_uuid(), %s, 1) "
        "ON CONFLICT (name) DO UPDATE SET mode = excluded.mode",
        mode,
    )


@pytest.mark.parametrize("mode", ["exactly-once", "at-least-once", "topic-lock"])
def test_a_dispatcher_is_refused_beside_an_ordinary_relay(place: Place, dispatcher: Dispatcher, mode: str) -> None:
    assert dispatcher.clear(place.stash()).sent == 1, "no relay has run"
    receipts = place.stash()
    relay(place, mode)
    with pytest.raises(DispatchRefused, match=f"the relay r .* is no sweeper .its mode is {mode}"):
        dispatcher.clear(receipts)
    relay(place, "immediate")
    assert dispatcher.clear(receipts).sent == 1
    relay(place, mode)
    with pytest.raises(DispatchRefused):
        dispatcher.clear(place.stash())
    assert place.pending() == 1


def test_a_missing_privilege_is_named(
    place: Place, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    role = f"app_{uuid.uuid4().hex[:8]}"
    relay(place, "immediate")
    place.sql(f"CREATE ROLE {role}; CREATE ROLE {role}_functions; GRANT USAGE ON SCHEMA public TO {role}")
    print_ddl(grants=True, dispatcher_role=role, functions_role=f"{role}_functions")
    printed = capsys.readouterr().out

    def connect() -> psycopg.Connection[Any]:
        connection = place.connect()
        connection.execute(f"SET ROLE {role}".encode())
        connection.commit()
        return connection

    receipts = place.stash()
    try:
        with Dispatcher(connect, place.kafka) as dispatcher:
            assert dispatcher.clear(receipts).sent == 0
            assert "--dispatcher-role ROLE' prints the grants" in caplog.text
        place.sql(printed)
        place.sql(f"REVOKE EXECUTE ON FUNCTION outbox_relays() FROM {role}")
        with Dispatcher(connect, place.kafka) as dispatcher:
            with pytest.raises(DispatchRefused, match="--dispatcher-role"):
                dispatcher.clear(receipts)
            place.sql(printed)
            assert dispatcher.clear(receipts).sent == 1
    finally:
        place.sql(f"DROP OWNED BY {role}, {role}_functions; DROP ROLE {role}, {role}_functions")


def table(place: Place, *, idle_seconds: float = 60.0) -> DispatchTable:
    return DispatchTable(place.connect, NAME, connections=2, idle_seconds=idle_seconds)


def versions(receipts: list[Receipt]) -> list[tuple[int, datetime]]:
    return [(receipt.id, receipt.create_time) for receipt in receipts]


def test_a_take_over_waits_for_dispatchers_that_are_sending(place: Place, dispatcher: Dispatcher) -> None:
    sending, later = place.stash(range(2))
    session = PostgresStore(place.dsn, NAME).session("taking over", locate=True)
    own = table(place)
    with ThreadPoolExecutor(1) as thread, psycopg.connect(place.dsn) as dumping:
        # A dump reads both tables, and the writer inserts: neither sends a row.
        dumping.execute("INSERT INTO outbox (kafka_topic) VALUES ('t')")
        for first in (True, False):
            with own.locked(versions([sending]), within_seconds=60):
                if not first:
                    relay(place, "exactly-once")
                dumping.execute("SELECT FROM outbox" if first else "SELECT FROM outbox, thresher_relay")
                with pytest.raises(DatabaseLost, match=r"is not relayed yet: .* backend \d+"):
                    session.await_dispatchers(first=first, within_seconds=0.1)
                waiting = thread.submit(session.await_dispatchers, first=first, within_seconds=60)
                if not first:
                    # Later dispatchers are refused at once, and do not prolong the take-over.
                    with pytest.raises(DispatchRefused):
                        dispatcher.clear([later])
                assert not waiting.done()
            waiting.result(60)
            relay(place, "immediate")
    session.close()
    own.close()


def settings_of(place: Place, **changes: Any) -> Settings:
    return Settings(name=place.topic, dsn=place.dsn, outbox=NAME, kafka=place.kafka, shards=1, **changes)


def test_a_successor_waits_for_dispatchers_that_found_no_relay(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first leader ends while it waits for them: its successor must not send what they are sending."""
    monkeypatch.setattr(take_over_module, "_ANSWER_SECONDS", 2.0)
    own, settings = table(place), settings_of(place)

    def waits() -> bool:
        try:
            assert take_over_module.take_over(settings) is None, "it did not wait"
        except DatabaseLost as error:
            return "is not relayed yet" in str(error)
        except BrokerLost:
            return False
        return False

    with own.locked(versions(place.stash()), within_seconds=60):
        for _ in range(2):
            eventually(waits, 60)
    own.close()
    tried_again(lambda: take_over_module.take_over(settings))


def test_no_process_joins_before_dispatchers_have_ended(place: Place) -> None:
    with psycopg.connect(place.dsn) as connection:
        create_locks(connection, NAME, Shape.THRESHER)
    sweeping = settings_of(place, delivery=Delivery.AT_LEAST_ONCE, settle=Settling.STAMP, dispatch=Dispatch.IMMEDIATE)
    tried_again(lambda: take_over_module.take_over(sweeping))
    locking = settings_of(place, coordination=Coordination.TOPIC_LOCK)
    own = table(place)
    mode = "SELECT mode FROM thresher_relay"
    with ThreadPoolExecutor(2) as threads:
        with own.locked(versions(place.stash()), within_seconds=60):
            founder = threads.submit(lambda: tried_again(lambda: join(locking)))
            eventually(lambda: place.sql(mode) == [("topic-lock",)], 60)
            member = threads.submit(lambda: tried_again(lambda: join(locking)))
            time.sleep(2.0)
            assert not founder.done()
            assert not member.done()
        assert founder.result(60).term == member.result(60).term
    own.close()


def test_a_group_that_opens_between_two_looks_is_joined(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(place.dsn) as connection:
        create_locks(connection, NAME, Shape.THRESHER)
    sweeping = settings_of(place, delivery=Delivery.AT_LEAST_ONCE, settle=Settling.STAMP, dispatch=Dispatch.IMMEDIATE)
    tried_again(lambda: take_over_module.take_over(sweeping))
    locking = settings_of(place, coordination=Coordination.TOPIC_LOCK)
    looked = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        with closing(table(place)) as own, own.locked(versions(place.stash()), within_seconds=60):
            founder = threads.submit(lambda: tried_again(lambda: join(locking)))
            eventually(lambda: place.sql("SELECT mode FROM thresher_relay") == [("topic-lock",)], 60)

            def after_the_founding(*_: object, **__: object) -> int:
                looked.set()
                founder.result(60)
                return 0

            monkeypatch.setattr(PostgresSession, "other_sessions", after_the_founding)
            member = threads.submit(lambda: tried_again(lambda: join(locking)))
            assert looked.wait(60)
        assert founder.result(60).term == member.result(60).term


@pytest.mark.parametrize("shape", Shape)
def test_no_writer_keeps_a_first_take_over_waiting(dsn: str, shape: Shape, capsys: pytest.CaptureFixture[str]) -> None:
    role = f"writer_{uuid.uuid4().hex[:8]}"
    print_ddl("box", shape=shape, writer_role=role)
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'".encode())
        owner.execute(capsys.readouterr().out.encode())
        # More than is printed for our own shape: with it, a role may take the lock of a dispatcher.
        owner.execute(f"GRANT INSERT ON box TO {role}".encode())
        session = PostgresStore(dsn, TableName(table="box"), shape).session("taking over", locate=True)
        try:
            with psycopg.connect(dsn, user=role, password="right") as writer:
                writer.execute("LOCK TABLE box IN ROW SHARE MODE")
                session.await_dispatchers(first=True, within_seconds=1.0)
        finally:
            session.close()
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.parametrize("inherit", ["INHERIT", "NOINHERIT"])
def test_a_dispatcher_by_another_role_is_waited_for(
    place: Place, inherit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member of the dispatcher's role may become it after it has logged in."""
    mark = uuid.uuid4().hex[:8]
    dispatcher, login, functions = f"dispatcher_{mark}", f"login_{mark}", f"functions_{mark}"
    place.sql(f"CREATE ROLE {dispatcher}")
    place.sql(f"CREATE ROLE {login} LOGIN PASSWORD 'right' {inherit} IN ROLE {dispatcher}")
    print_ddl("outbox", relay=True, dispatcher_role=dispatcher, functions_role=functions)
    place.sql(capsys.readouterr().out)
    session = PostgresStore(place.dsn, NAME).session("taking over", locate=True)
    try:
        with psycopg.connect(place.dsn, user=login, password="right") as sending:
            sending.execute(f"SET ROLE {dispatcher}".encode())
            sending.execute("SELECT FROM outbox FOR NO KEY UPDATE")
            with pytest.raises(DatabaseLost, match=login):
                session.await_dispatchers(first=True, within_seconds=0.1)
        session.await_dispatchers(first=True, within_seconds=60)
    finally:
        session.close()
        for role in (login, dispatcher, functions):
            place.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_dispatcher_that_vanishes_loses_its_locks(place: Place, dispatcher: Dispatcher) -> None:
    receipts = place.stash()
    vanishing = table(place, idle_seconds=0.5)
    holding = ExitStack()
    rows, stamp = holding.enter_context(vanishing.locked(versions(receipts), within_seconds=60))
    assert [row.id for row in rows] == [receipts[0].id]
    assert dispatcher.clear(receipts) == Cleared(skipped=1), "the row is locked"
    eventually(lambda: dispatcher.clear(receipts).sent, 30)
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        stamp([receipts[0].id])
    holding.close()
    assert place.numbers() == {0: 1}


def test_threads_do_not_wait_for_a_broker_one_after_another(place: Place) -> None:
    receipts = place.stash(range(24))
    with (
        place.dispatcher(kafka=AWAY, timeout_seconds=1.0, rest_seconds=60.0, connections=2) as away,
        ThreadPoolExecutor(24) as threads,
    ):
        done = list(threads.map(lambda receipt: away.clear([receipt]), receipts))
    assert sum(each.left for each in done) == 24
    assert sum(each.unknown for each in done) <= 2, "other threads found the topic paused, or got no turn"


def test_threads_do_not_wait_for_a_database_one_after_another(place: Place) -> None:
    receipts, tried, gone = place.stash(range(8)), threading.Semaphore(0), threading.Event()
    tries: list[int] = []

    def connect() -> psycopg.Connection[Any]:
        tries.append(1)
        tried.release()
        gone.wait(60)
        raise psycopg.OperationalError("the server is away")

    with (
        Dispatcher(connect, place.kafka, timeout_seconds=60.0, rest_seconds=600.0, connections=1) as dispatcher,
        ThreadPoolExecutor(8) as threads,
    ):
        calls = [threads.submit(dispatcher.clear, [receipt]) for receipt in receipts]
        assert tried.acquire(timeout=60)
        time.sleep(0.3)
        gone.set()
        done = [call.result(60) for call in calls]
    assert [each.not_sent for each in done] == [1] * 8
    assert len(tries) == 1


def test_a_call_waits_for_its_turn_within_its_limit(place: Place) -> None:
    receipts = place.stash()
    with place.dispatcher(connections=1, timeout_seconds=3.0) as dispatcher, ThreadPoolExecutor(1) as thread:
        with dispatcher._table.locked([], within_seconds=60):
            done = thread.submit(dispatcher.clear, receipts).result(30)
        assert (done.not_sent, done.left) == (1, 1)
        assert "all 1 connections" in done.reasons[0]
        assert dispatcher.clear(receipts).sent == 1, "the topic is not paused"


def test_only_the_topic_with_silent_brokers_is_paused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, sends = f"{place.topic}-silent", KafkaBackend.send

    # Simulates a partition without a leader, which a single broker cannot have.
    def send(self: KafkaBackend, messages: Sequence[Message]) -> list[KafkaError | None]:
        answered = iter(sends(self, [message for message in messages if message.topic != silent]))
        late = KafkaError(KafkaError._MSG_TIMED_OUT)
        return [late if message.topic == silent else next(answered) for message in messages]

    monkeypatch.setattr(KafkaBackend, "send", send)

    def stash() -> list[Receipt | None]:
        with place.connect() as connection:
            stuck = place.outbox.stash(connection, Message(topic=silent, key="k", value="v"))
            return [stuck, place.outbox.stash(connection, place.message(0))]

    with place.dispatcher(rest_seconds=600.0) as dispatcher:
        first = dispatcher.clear(stash())
        assert (first.sent, first.unknown) == (1, 1), first
        second = dispatcher.clear(stash())
        assert (second.sent, second.not_sent, second.unknown) == (1, 1, 0), second
        assert second.reasons == (f"{silent}: its brokers did not answer a moment ago",)


def test_a_call_past_its_limit_begins_no_more_parts(place: Place) -> None:
    receipts = place.stash(range(MANY))
    seconds = iter(range(10**6))
    with place.dispatcher(clock=lambda: float(next(seconds))) as slow:
        done = slow.clear(receipts)
    assert 0 < done.sent < MANY
    assert (done.not_sent, done.unknown) == (MANY - done.sent, 0)
    assert "took 5 seconds" in done.reasons[0]
    assert sorted(place.numbers()) == list(range(done.sent))


def test_no_part_overtakes_a_part_whose_database_failed(place: Place) -> None:
    receipts = place.stash(range(MANY))
    place.sql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';"
        "CREATE TRIGGER fail BEFORE UPDATE ON outbox FOR EACH ROW WHEN (old.id < 10) EXECUTE FUNCTION fail()"
    )
    with place.dispatcher(rest_seconds=0) as dispatcher:
        done = dispatcher.clear(receipts)
    assert (done.sent, done.unknown, done.not_sent) == (0, 500, MANY - 500)
    assert sorted(place.numbers()) == list(range(500))


def test_a_stamp_dropped_by_a_trigger_is_reported(place: Place, dispatcher: Dispatcher) -> None:
    receipts = place.stash(range(3))
    place.sql(
        "CREATE FUNCTION drop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        f"CREATE TRIGGER drop BEFORE UPDATE ON outbox FOR EACH ROW WHEN (old.id = {receipts[1].id}) "
        "EXECUTE FUNCTION drop()"
    )
    done = dispatcher.clear(receipts)
    assert (done.sent, done.unknown, place.pending()) == (2, 1, 1)
    assert "did not stamp" in done.reasons[0]


FORKS = """
import os, signal, sys, time
import psycopg
from confluent_kafka import Producer
from thresher.outbox import Message, Outbox
from thresher.publisher import Dispatcher, kafka_backend
from thresher.publisher.kafka_backend import KafkaBackend

class Watched(Producer):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.owner = os.getpid()

    def __del__(self):
        if os.getpid() != self.owner:
            os.write(2, b"a child destroyed its parent's client")
            os._exit(1)

kafka_backend.Producer = Watched
dsn, bootstrap, topic = sys.argv[1:]
opened = []

def connect():
    opened.append(psycopg.connect(dsn))
    return opened[-1]

def stashed():
    with psycopg.connect(dsn) as connection:
        return Outbox().stash(connection, Message(topic=topic, key="k", value="1"))

def forked(work):
    child = os.fork()
    if not child:
        signal.alarm(60)
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child hung or failed"

dispatcher = Dispatcher(connect, {"bootstrap.servers": bootstrap})
assert dispatcher.clear([stashed()]).sent == 1
forked(dispatcher.close)
assert dispatcher.clear([stashed()]).sent == 1
assert len(opened) == 1, "the child has closed the parent's connection"

def child():
    assert dispatcher.clear([stashed()]).sent == 1
    dispatcher.close()

forked(child)
assert dispatcher.clear([stashed()]).sent == 1
assert len(opened) == 1
dispatcher.close()

waiting = KafkaBackend({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 600000}, waits=False)
waiting.publish([Message(topic=topic, value="1")], None)

def leaves():
    assert waiting.flush()
    waiting.close()

# The parent's threads are at another step in each fork.
for delay in range(4):
    time.sleep(delay / 1000)
    forked(leaves)
    # The interpreter destroys all objects at its end.
    forked(sys.exit)
assert not waiting.flush(0.1)
os._exit(0)
"""


def test_a_forked_child_leaves_the_parents_clients_alone(place: Place) -> None:
    given = [sys.executable, "-W", "ignore", "-c", FORKS, place.dsn, place.kafka["bootstrap.servers"], place.topic]
    ended = subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert place.pending() == 0
