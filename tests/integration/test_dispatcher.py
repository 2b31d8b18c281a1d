"""A dispatcher on real servers: committed rows are sent at once and stamped, all other rows are left."""

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.processes import eventually
from tests.relay.dispatched import AWAY, MANY, Place
from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Message, Outbox, Receipt
from thresher.publisher import Cleared, Dispatcher, DispatchRefused


@pytest.fixture
def place(stack: Stack, dsn: str) -> Place:
    return Place(stack, dsn)


@pytest.fixture
def dispatcher(place: Place) -> Iterator[Dispatcher]:
    with place.dispatcher() as made:
        yield made


def test_only_committed_rows_are_sent_and_only_once(place: Place, dispatcher: Dispatcher) -> None:
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


def test_a_different_row_with_the_same_id_is_not_sent(place: Place, dispatcher: Dispatcher) -> None:
    (receipt,) = place.stash()
    place.sql("UPDATE outbox SET create_time = %s", receipt.create_time + timedelta(microseconds=1))
    assert dispatcher.clear([receipt]) == Cleared(skipped=1)
    assert place.pending() == 1


def test_only_one_of_two_dispatchers_sends_a_row(place: Place) -> None:
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


def test_a_row_marked_by_a_sweeper_is_left_to_it(place: Place, dispatcher: Dispatcher) -> None:
    marked, free = place.stash(range(2))
    place.sql("UPDATE outbox SET leader_id = %s WHERE id = %s", uuid.uuid4(), marked.id)
    assert dispatcher.clear([marked, free]) == Cleared(sent=1, skipped=1)
    assert place.numbers() == {1: 1}


def test_an_unreachable_broker_leaves_rows_and_raises_no_error(place: Place) -> None:
    receipts = place.stash(range(3))
    clock = [0.0]
    with place.dispatcher(kafka=AWAY, timeout_seconds=0.5, rest_seconds=9.0, clock=lambda: clock[0]) as away:
        first = away.clear(receipts)
        assert (first.sent, first.skipped, first.left, first.unknown) == (0, 0, 3, 3)
        why = f"{place.topic}: its brokers did not answer a moment ago"
        assert away.clear(receipts) == Cleared(not_sent=3, reasons=(why,))
        clock[0] = 10.0
        assert away.clear(receipts).unknown == 3, "the dispatcher tries again"
    assert place.pending() == 3
    with place.dispatcher() as there:
        assert there.clear(receipts) == Cleared(sent=3)


def test_an_unsendable_row_stays_and_the_others_are_sent(place: Place, dispatcher: Dispatcher) -> None:
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


def test_a_later_part_does_not_overtake_an_unsent_row(place: Place) -> None:
    with place.connect() as connection:
        first = place.outbox.stash(connection, place.message(0, key="k", value=os.urandom(900_000)))
        rest = place.outbox.stash_many(
            connection, [place.message(n, key="k" if n > 600 else "other") for n in range(1, 900)], receipts=True
        )
    with place.dispatcher(kafka={**place.kafka, "message.max.bytes": 500_000}) as narrow:
        done = narrow.clear([first, *rest])
    assert (done.sent, done.not_sent) == (600, 300), done
    assert not any(record.key == b"k" for record in place.records())


def test_a_failed_stamp_is_reported_and_the_row_stays(place: Place, dispatcher: Dispatcher) -> None:
    receipts = place.stash(range(2))
    place.sql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';"
        "CREATE TRIGGER fail BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    done = dispatcher.clear(receipts)
    assert (done.sent, done.unknown, place.pending()) == (0, 2, 2)
    assert "no" in done.reasons[0]


def test_a_lost_database_is_reported_and_used_again_later(place: Place) -> None:
    ours = "FROM pg_stat_activity WHERE application_name = 'dispatcher'"
    opened: list[psycopg.Connection[Any]] = []

    def end_sessions() -> None:
        place.sql(f"SELECT pg_terminate_backend(pid) {ours}")
        # The server has sent its farewell by then, and not earlier.
        eventually(lambda: not place.sql(f"SELECT pid {ours}"), 30)

    def connect() -> psycopg.Connection[Any]:
        if len(opened) == 2:
            opened.append(opened[0])
            raise psycopg.OperationalError("the server is away")
        opened.append(psycopg.connect(place.dsn, application_name="dispatcher"))
        return opened[-1]

    with Dispatcher(connect, place.kafka, rest_seconds=0) as dispatcher:
        assert dispatcher.clear(place.stash(range(1))).sent == 1
        assert dispatcher.clear(place.stash(range(1))).sent == 1
        assert len(opened) == 1, "the connection is kept"
        end_sessions()
        assert dispatcher.clear(place.stash(range(1))).sent == 1, "the server reported that it shuts down"
        end_sessions()
        third = place.stash(range(1))
        assert dispatcher.clear(third) == Cleared(not_sent=1, reasons=("the database failed: the server is away",))
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
    before = {**os.environ}
    os.environ.update(THRESHER_DS=place.dsn, THRESHER_BOOTSTRAP=place.kafka["bootstrap.servers"])
    try:
        exec(example, {})  # noqa: S102 - it is our own
    finally:
        os.environ.clear()
        os.environ.update(before)
        Admin.of(place.kafka).delete_topics(["orders"])
    assert place.pending() == 0
    assert place.sql("SELECT count(*) FROM outbox") == place.sql("SELECT count(*) FROM parcels") == [(1,)]
