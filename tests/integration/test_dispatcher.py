"""A dispatcher on real servers: what is committed is sent at once and stamped, and everything else is left."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError

from tests.committed_records import committed_records
from tests.processes import eventually
from thresher.core.errors import InvalidInput
from thresher.db import TableName, statement
from thresher.db.postgres.store import PostgresStore
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import ConsumerRecord
from thresher.outbox import Message, Outbox, Receipt, create_schema
from thresher.publisher import Cleared, Dispatcher, DispatchRefused
from thresher.publisher.dispatch_table import DispatchTable, NotNow
from thresher.publisher.kafka_backend import KafkaBackend

MANY = 1_200
NAME = TableName(table="outbox")
AWAY = {"bootstrap.servers": "127.0.0.1:1"}


class Place:
    """An outbox, a topic, and a dispatcher between the two."""

    def __init__(self, stack: Stack, dsn: str) -> None:
        self.dsn = dsn
        self.topic = f"dispatch-{uuid.uuid4().hex[:8]}"
        self.kafka = {"bootstrap.servers": stack.kafka.bootstrap}
        Admin.of(self.kafka).create_topic(self.topic, partitions=3)
        self.outbox = Outbox()
        with psycopg.connect(dsn) as connection:
            create_schema(connection, NAME)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn)

    def dispatcher(self, **changes: Any) -> Dispatcher:
        return Dispatcher(self.connect, changes.pop("kafka", self.kafka), **changes)

    def message(self, number: int, **more: Any) -> Message:
        return Message(topic=self.topic, **{"key": f"k{number % 7}", "value": str(number), **more})

    def stash(self, numbers: range = range(1), **more: Any) -> list[Receipt]:
        with self.connect() as connection:
            messages = [self.message(number, **more) for number in numbers]
            return self.outbox.stash_many(connection, messages, receipts=True)

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def pending(self) -> int:
        return int(self.sql("SELECT count(*) FROM outbox WHERE dispatched_time IS NULL")[0][0])

    def records(self) -> list[ConsumerRecord]:
        return committed_records(self.topic, self.kafka)

    def numbers(self) -> Counter[int]:
        return Counter(int(record.value or b"") for record in self.records())


@pytest.fixture
def place(stack: Stack, dsn: str) -> Place:
    return Place(stack, dsn)


@pytest.fixture
def dispatcher(place: Place) -> Iterator[Dispatcher]:
    with place.dispatcher() as made:
        yield made


def test_only_what_is_committed_is_sent_and_once(place: Place, dispatcher: Dispatcher) -> None:
    with place.connect() as connection:
        receipt = place.outbox.stash(connection, place.message(0))
        assert dispatcher.clear([receipt]) == Cleared(skipped=1), "before the commit"
        connection.rollback()
        assert dispatcher.clear([receipt]) == Cleared(skipped=1), "after a rollback"
        kept = place.outbox.stash(connection, place.message(1))
        other = place.outbox.stash(connection, place.message(2))
        connection.commit()
    assert dispatcher.clear([kept, None, kept]) == Cleared(sent=1)
    assert dispatcher.clear([kept]) == Cleared(skipped=1), "a second time"
    assert dispatcher.clear([]) == dispatcher.clear([None]) == Cleared()
    assert place.numbers() == {1: 1}
    assert other is not None
    assert [id_ for (id_,) in place.sql("SELECT id FROM outbox WHERE dispatched_time IS NULL")] == [other.id]


def test_a_record_is_as_the_relay_would_send_it(place: Place, dispatcher: Dispatcher) -> None:
    moment = datetime(2026, 3, 1, 12, 0, 0, 1_999, tzinfo=UTC)
    headers = [("a", b"1"), ("a", None), ("b", "text")]
    dispatcher.clear(place.stash(headers=headers, partition=2, timestamp=moment))
    dispatcher.clear(place.stash(key=None, value=None))
    placed, tombstone = sorted(place.records(), key=lambda record: record.value is None)
    assert (placed.key, placed.value, placed.partition) == (b"k0", b"0", 2)
    assert placed.headers == (("a", b"1"), ("a", None), ("b", b"text"))
    assert placed.timestamp_ms == 1_772_366_400_001
    assert (tombstone.key, tombstone.value) == (None, None)


def test_rows_of_a_key_are_sent_in_order(place: Place, dispatcher: Dispatcher) -> None:
    receipts = place.stash(range(MANY))
    assert dispatcher.clear(reversed(receipts)) == Cleared(sent=MANY)
    by_key: dict[Any, list[int]] = {}
    for record in place.records():
        by_key.setdefault(record.key, []).append(int(record.value or b""))
    assert sorted(number for each in by_key.values() for number in each) == list(range(MANY))
    assert all(each == sorted(each) for each in by_key.values())
    assert place.pending() == 0


def test_another_row_under_the_id_is_not_sent(place: Place, dispatcher: Dispatcher) -> None:
    (receipt,) = place.stash()
    place.sql("UPDATE outbox SET create_time = %s", receipt.create_time + timedelta(microseconds=1))
    assert dispatcher.clear([receipt]) == Cleared(skipped=1)
    assert place.pending() == 1


def test_of_two_dispatchers_one_sends_a_row(place: Place) -> None:
    receipts = place.stash(range(MANY))
    together = threading.Barrier(4)
    with place.dispatcher() as first, place.dispatcher() as second, ThreadPoolExecutor(4) as threads:

        def clear(dispatcher: Dispatcher) -> Cleared:
            together.wait(60)
            return dispatcher.clear(receipts)

        found = list(threads.map(clear, [first, second, first, second]))
    assert sum(each.sent for each in found) == MANY
    assert place.numbers() == dict.fromkeys(range(MANY), 1)
    assert place.pending() == 0


def test_a_row_that_a_sweeper_has_marked_is_left_to_it(place: Place, dispatcher: Dispatcher) -> None:
    marked, free = place.stash(range(2))
    place.sql("UPDATE outbox SET leader_id = %s WHERE id = %s", uuid.uuid4(), marked.id)
    assert dispatcher.clear([marked, free]) == Cleared(sent=1, skipped=1)
    assert place.numbers() == {1: 1}


def test_a_broker_that_is_away_leaves_rows_and_no_error(place: Place) -> None:
    receipts = place.stash(range(3))
    clock = [0.0]
    with place.dispatcher(kafka=AWAY, timeout_seconds=0.5, rest_seconds=9.0, clock=lambda: clock[0]) as away:
        first = away.clear(receipts)
        assert (first.sent, first.skipped, first.left, first.unknown) == (0, 0, 3, 3)
        why = f"{place.topic}: its brokers did not answer a moment ago"
        assert away.clear(receipts) == Cleared(not_sent=3, reasons=(why,))
        clock[0] = 10.0
        assert away.clear(receipts).unknown == 3, "it tries again"
    assert place.pending() == 3
    with place.dispatcher() as there:
        assert there.clear(receipts) == Cleared(sent=3)


def test_a_row_that_cannot_be_sent_is_left_and_others_go(place: Place, dispatcher: Dispatcher) -> None:
    good = place.stash(range(2))
    with place.connect() as connection:
        large = place.outbox.stash(connection, place.message(2, value=os.urandom(999_900)))
        missing = place.outbox.stash(connection, Message(topic=f"{place.topic}-missing", key="k", value="v"))
        reserved = place.outbox.stash(connection, Message(topic="some.progress", key="k", value="v"))
        headless = place.outbox.stash(connection, place.message(3))
        assert headless is not None
        connection.execute("UPDATE outbox SET kafka_header_keys = '{a}' WHERE id = %s", [headless.id])
        never = place.outbox.stash(connection, place.message(4))
        assert never is not None
        connection.execute("UPDATE outbox SET kafka_timestamp = 'infinity' WHERE id = %s", [never.id])
    with place.dispatcher(kafka={**place.kafka, "message.max.bytes": 500_000}) as narrow:
        done = narrow.clear([*good, large, missing, reserved, headless, never])
    assert (done.sent, done.not_sent, done.unknown) == (2, 5, 0), done
    assert any("size" in reason.lower() for reason in done.reasons), done.reasons
    assert place.pending() == 5


def test_a_later_part_does_not_overtake_a_row_that_is_left(place: Place) -> None:
    with place.connect() as connection:
        first = place.outbox.stash(connection, place.message(0, key="k", value=os.urandom(900_000)))
        rest = place.outbox.stash_many(
            connection, [place.message(n, key="k" if n > 600 else "other") for n in range(1, 900)], receipts=True
        )
    with place.dispatcher(kafka={**place.kafka, "message.max.bytes": 500_000}) as narrow:
        done = narrow.clear([first, *rest])
    assert (done.sent, done.not_sent) == (600, 300), done
    assert not any(record.key == b"k" for record in place.records())


def test_a_stamp_that_fails_is_told_and_the_row_stays(place: Place, dispatcher: Dispatcher) -> None:
    receipts = place.stash(range(2))
    place.sql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';"
        "CREATE TRIGGER fail BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    done = dispatcher.clear(receipts)
    assert (done.sent, done.unknown, place.pending()) == (0, 2, 2)
    assert "no" in done.reasons[0]


def test_a_database_that_went_away_is_told_and_used_again(place: Place) -> None:
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dispatcher'"
    opened: list[psycopg.Connection[Any]] = []

    def connect() -> psycopg.Connection[Any]:
        if len(opened) == 2:
            opened.append(opened[0])
            raise psycopg.OperationalError("nobody is there")
        opened.append(psycopg.connect(place.dsn, application_name="dispatcher"))
        return opened[-1]

    with Dispatcher(connect, place.kafka, rest_seconds=0) as dispatcher:
        assert dispatcher.clear(place.stash(range(1))).sent == 1
        assert dispatcher.clear(place.stash(range(1))).sent == 1
        assert len(opened) == 1, "the connection is kept"
        place.sql(ends)
        assert dispatcher.clear(place.stash(range(1))).sent == 1, "the server said that it went"
        place.sql(ends)
        third = place.stash(range(1))
        assert dispatcher.clear(third) == Cleared(not_sent=1, reasons=("the database failed: nobody is there",))
        assert dispatcher.clear(third).sent == 1
    assert all(connection.closed for connection in opened)


def test_threads_share_a_few_connections(place: Place) -> None:
    opened: list[psycopg.Connection[Any]] = []

    def connect() -> psycopg.Connection[Any]:
        opened.append(place.connect())
        return opened[-1]

    receipts = place.stash(range(64))
    with Dispatcher(connect, place.kafka, connections=2) as dispatcher, ThreadPoolExecutor(16) as threads:
        done = list(threads.map(lambda receipt: dispatcher.clear([receipt]), receipts))
    assert [each.sent for each in done] == [1] * 64
    assert len(opened) <= 2


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
def test_beside_a_relay_that_is_no_sweeper_it_is_refused(place: Place, dispatcher: Dispatcher, mode: str) -> None:
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


def test_a_role_that_cannot_read_the_mode_is_refused(place: Place) -> None:
    role = f"app_{uuid.uuid4().hex[:8]}"
    relay(place, "immediate")
    place.sql(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT, UPDATE ON outbox TO {role}")

    def connect() -> psycopg.Connection[Any]:
        connection = place.connect()
        connection.execute(f"SET ROLE {role}".encode())
        connection.commit()
        return connection

    receipts = place.stash()
    try:
        with Dispatcher(connect, place.kafka) as dispatcher:
            with pytest.raises(DispatchRefused, match=r"GRANT SELECT .name, outbox, mode. ON"):
                dispatcher.clear(receipts)
            place.sql(f"GRANT SELECT (name, outbox, mode) ON thresher_relay TO {role}")
            assert dispatcher.clear(receipts).sent == 1
    finally:
        place.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def table(place: Place, *, idle_seconds: float = 60.0) -> DispatchTable:
    return DispatchTable(place.connect, NAME, connections=2, idle_seconds=idle_seconds)


def versions(receipts: list[Receipt]) -> list[tuple[int, datetime]]:
    return [(receipt.id, receipt.create_time) for receipt in receipts]


def test_a_take_over_waits_for_those_that_send(place: Place, dispatcher: Dispatcher) -> None:
    sending, later = place.stash(range(2))
    session = PostgresStore(place.dsn, NAME).session("taking over")
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    own = table(place)
    with ThreadPoolExecutor(1) as thread:
        with own.locked(versions([sending]), within_seconds=60):
            waiting = thread.submit(session.await_dispatchers)
            eventually(lambda: place.sql(waits) == [(1,)], 60)
            # Others do not wait, nor prolong it.
            with pytest.raises(NotNow, match="takes over"), own.locked(versions([later]), within_seconds=60):
                pass
            assert dispatcher.clear([later]).not_sent == 1
            assert not waiting.done()
        waiting.result(60)
    session.close()
    own.close()


def test_a_dispatcher_that_vanishes_loses_its_locks(place: Place, dispatcher: Dispatcher) -> None:
    receipts = place.stash()
    vanishing = table(place, idle_seconds=0.5)
    holding = ExitStack()
    rows, stamp = holding.enter_context(vanishing.locked(versions(receipts), within_seconds=60))
    assert [row.id for row in rows] == [receipts[0].id]
    assert dispatcher.clear(receipts) == Cleared(skipped=1), "it is locked"
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
    assert sum(each.unknown for each in done) <= 2, "others found that the topic rests, or had no turn"


def test_threads_do_not_wait_for_a_database_one_after_another(place: Place) -> None:
    receipts, tried, gone = place.stash(range(8)), threading.Semaphore(0), threading.Event()
    tries: list[int] = []

    def connect() -> psycopg.Connection[Any]:
        tries.append(1)
        tried.release()
        gone.wait(60)
        raise psycopg.OperationalError("nobody is there")

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


def test_a_call_waits_no_longer_than_told_for_its_turn(place: Place) -> None:
    receipts = place.stash()
    with place.dispatcher(connections=1, timeout_seconds=0.3) as dispatcher:
        with dispatcher._table.locked([], within_seconds=60):
            done = dispatcher.clear(receipts)
        assert (done.not_sent, done.left) == (1, 1)
        assert "all 1 connections" in done.reasons[0]
        assert dispatcher.clear(receipts).sent == 1, "it does not rest"


def test_only_the_topic_rests_whose_brokers_are_silent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, sends = f"{place.topic}-silent", KafkaBackend.send

    # As if its partition had no leader, which a single broker cannot show.
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


def test_a_call_that_took_too_long_begins_nothing_more(place: Place) -> None:
    receipts = place.stash(range(MANY))
    seconds = iter(range(10**6))
    with place.dispatcher(clock=lambda: float(next(seconds))) as slow:
        done = slow.clear(receipts)
    assert 0 < done.sent < MANY
    assert (done.not_sent, done.unknown) == (MANY - done.sent, 0)
    assert "took 5 seconds" in done.reasons[0]
    assert sorted(place.numbers()) == list(range(done.sent))


def test_no_part_overtakes_one_whose_database_failed(place: Place) -> None:
    receipts = place.stash(range(MANY))
    place.sql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';"
        "CREATE TRIGGER fail BEFORE UPDATE ON outbox FOR EACH ROW WHEN (old.id < 10) EXECUTE FUNCTION fail()"
    )
    with place.dispatcher(rest_seconds=0) as dispatcher:
        done = dispatcher.clear(receipts)
    assert (done.sent, done.unknown, done.not_sent) == (0, 500, MANY - 500)
    assert sorted(place.numbers()) == list(range(500))


def test_a_stamp_that_a_trigger_drops_is_told(place: Place, dispatcher: Dispatcher) -> None:
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
import os, signal, sys
import psycopg
from thresher.outbox import Message, Outbox
from thresher.publisher import Dispatcher
from thresher.publisher.kafka_backend import KafkaBackend

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
        signal.alarm(20)
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

forked(leaves)
assert not waiting.flush(0.1)
os._exit(0)
"""


def test_a_forked_child_leaves_the_parents_clients_alone(place: Place) -> None:
    given = [sys.executable, "-W", "ignore", "-c", FORKS, place.dsn, place.kafka["bootstrap.servers"], place.topic]
    ended = subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert place.pending() == 0


def test_a_wrong_receipt_or_connection_is_refused(place: Place, dispatcher: Dispatcher) -> None:
    (receipt,) = place.stash()
    for wrong in (Receipt(table=TableName(table="other"), id=1, create_time=receipt.create_time), 7):
        with pytest.raises(InvalidInput, match="a receipt of"):
            dispatcher.clear([wrong])  # type: ignore[list-item]
    with place.connect() as busy:
        busy.execute("SELECT 1")
        with Dispatcher(lambda: busy, place.kafka) as borrowing, pytest.raises(InvalidInput, match="transaction"):
            borrowing.clear([receipt])
    with Dispatcher(place.connect, place.kafka, outbox=Outbox("none")) as astray:
        lost = Receipt(table=TableName(table="none"), id=1, create_time=receipt.create_time)
        with pytest.raises(DispatchRefused, match="there is no table"):
            astray.clear([lost])


def test_the_pages_example_runs(place: Place) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweeper.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    Admin.of(place.kafka).create_topic("orders", partitions=1)
    place.sql("CREATE TABLE orders (id int)")
    before = {**os.environ}
    os.environ.update(THRESHER_DS=place.dsn, THRESHER_BOOTSTRAP=place.kafka["bootstrap.servers"])
    try:
        exec(example, {})  # noqa: S102 - it is our own
    finally:
        os.environ.clear()
        os.environ.update(before)
        Admin.of(place.kafka).delete_topics(["orders"])
    assert place.pending() == 0
    assert place.sql("SELECT count(*) FROM outbox") == place.sql("SELECT count(*) FROM orders") == [(1,)]
