"""Processing records without servers: their ids, failing handlers, and an unreachable database."""

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from psycopg.pq import TransactionStatus

from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.inbox import InboxBusy, MessageRepeated, RecordWithoutId, waiting
from thresher.inbox import consuming as module
from thresher.inbox.consuming import consume, id_of
from thresher.inbox.dead import InboxRecord
from thresher.inbox.inbox import LONGEST_ID
from thresher.inbox.waiting import Waiting
from thresher.outbox.message import EVENT_ID, Message, with_event_id


def record(*headers: tuple[str, bytes | None]) -> InboxRecord:
    return InboxRecord(topic="t", partition=1, offset=2, key=None, value=b"v", headers=headers)


def test_a_record_is_identified_by_header_or_offset() -> None:
    assert id_of(record(("a", b"b"), (EVENT_ID, b"m1"))) == "m1"
    assert id_of(record(), from_place=True) == "t/1/2"
    longest = InboxRecord(topic="t" * 249, partition=10, offset=10**12, key=None, value=None)
    assert len(id_of(longest, from_place=True)) <= LONGEST_ID
    for without in (record(), record((EVENT_ID, None)), record((EVENT_ID, b""))):
        with pytest.raises(RecordWithoutId, match="has no header event-id"):
            id_of(without)


@pytest.mark.parametrize("place", ["t/1/2", "t/1@2"])
def test_no_header_gives_the_id_of_a_place(place: str) -> None:
    assert id_of(record((EVENT_ID, place.encode()))).startswith("sha256:")
    assert id_of(record((EVENT_ID, f"{place}/x".encode()))) == f"{place}/x"


def test_ids_that_look_alike_when_escaped_stay_distinct() -> None:
    assert id_of(record((EVENT_ID, b"\xff"))) != id_of(record((EVENT_ID, b"\\xff")))
    assert id_of(record((EVENT_ID, b"\0"))) != id_of(record((EVENT_ID, b"\\x00")))


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\0b", b"x" * 300, "ä".encode()])
def test_any_id_can_be_stored_and_stays_distinct(value: bytes) -> None:
    found = id_of(record((EVENT_ID, value)))
    assert 0 < len(found) <= 255
    assert "\0" not in found
    assert found != id_of(record((EVENT_ID, value + b"x")))


class Gone:
    """A message of the Kafka client."""

    def __init__(self, offset: int, error: KafkaError | None = None) -> None:
        self._offset, self._error = offset, error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> list[tuple[str, bytes]]:
        return [(EVENT_ID, b"m%d" % self._offset)]


class Consumer:
    """A consumer that returns these messages once, and records its commits."""

    def __init__(self, *messages: Gone) -> None:
        self._messages = list(messages)
        self.committed: list[list[int]] = []
        self.empty = False
        self.sought: list[int] = []

    def seek(self, place: Any) -> None:
        self.sought.append(place.offset)

    def consume(self, _: int, __: float) -> list[Gone]:
        messages, self._messages = self._messages, []
        self.empty = not messages
        return messages

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        assert not asynchronous
        self.committed.append([each.offset for each in offsets])


class Session(psycopg.Connection[Any]):
    """A connection that the test can break."""

    closed = False
    info = SimpleNamespace(transaction_status=TransactionStatus.IDLE)  # type: ignore[assignment]

    def __init__(self) -> None:
        pass

    def __del__(self) -> None:  # type: ignore[override]
        pass

    def close(self) -> None:
        self.closed = True

    @contextmanager
    def transaction(self) -> Iterator[None]:  # type: ignore[override]
        # As in psycopg: `Rollback` ends only the innermost block.
        with suppress(psycopg.Rollback):
            yield


class FirstTimes:
    """An inbox in which no message is a repeat."""

    name = TableName(table="thresher_inbox")

    @contextmanager
    def once(self, connection: Any, *_: object) -> Iterator[bool]:
        with connection.transaction():
            yield True


def test_only_waits_for_another_transaction_count_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], list[Waiting]()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(waiting.Standing, "_ask", lambda *_: None)
    stood = waiting.Standing(record(), "m1", busy_seconds=600, on_wait=told.append)

    def tried(seconds: float, error: Exception) -> None:
        with stood.watching(Session()):
            now[0] += seconds
        if isinstance(error, InboxBusy):
            stood.behind_another(error)
        else:
            stood.because_of_the_database(error)

    tried(1000, psycopg.OperationalError("away"))
    tried(10, InboxBusy("busy"))
    assert [each.seconds for each in told] == [1000, 10]
    tried(595, psycopg.OperationalError("away again"))
    tried(10, InboxBusy("busy"))
    with pytest.raises(InboxBusy):
        tried(590, InboxBusy("busy"))


def test_an_unreachable_database_is_awaited_without_dead_records(monkeypatch: pytest.MonkeyPatch) -> None:
    set_aside: list[object] = []
    monkeypatch.setattr(module, "set_aside", lambda *given, **_: set_aside.append(given))
    connects, handled = itertools.count(), []

    def connect() -> Any:
        if next(connects) % 3 == 1:
            raise psycopg.OperationalError("away")
        return Session()

    def handle(connection: Any, record: InboxRecord) -> None:
        handled.append(record.offset)
        if len(handled) < 6:
            connection.close()
            raise psycopg.OperationalError("the server closed the connection")

    consumer = Consumer(Gone(0), Gone(1))
    done = consume(
        consumer,
        connect,
        handle,
        inbox=cast("Any", FirstTimes()),
        attempts=2,
        stop=lambda: consumer.empty,
        back_off_seconds=0.001,
    )
    assert handled == [0] * 6 + [1]
    assert (done.processed, done.set_aside, set_aside) == (2, 0, [])
    assert consumer.committed[-1] == [2]


def _run(monkeypatch: pytest.MonkeyPatch, consumer: Consumer, handle: Any, **more: Any) -> tuple[Any, list[Any]]:
    set_aside: list[Any] = []
    monkeypatch.setattr(module, "set_aside", lambda *_, **given: set_aside.append(given["reason"]))
    given = {
        "inbox": cast("Any", FirstTimes()),
        "attempts": 2,
        "stop": lambda: consumer.empty,
        "back_off_seconds": 0.001,
        **more,
    }
    return consume(consumer, Session, handle, **given), set_aside


def _raising(error: BaseException) -> Any:
    def handle(*_: object) -> None:
        raise error

    return handle


def _closing(connection: Any, _: object) -> None:
    connection.close()


@pytest.mark.parametrize(
    ("handle", "reason"),
    [
        (_raising(ValueError("no")), "ValueError: no"),
        (_raising(psycopg.Rollback()), "HandlerUndone: the handler raised psycopg.Rollback: its work was rolled back"),
        (_raising(MessageRepeated("another inbox")), "MessageRepeated: another inbox"),
        (_raising(InboxBusy("another inbox")), "InboxBusy: another inbox"),
        (_raising(psycopg.errors.LockNotAvailable("locked")), "LockNotAvailable: locked"),
        (_closing, "RuntimeError: the handler closed the connection, or caught the error of its loss"),
    ],
)
def test_an_error_or_misuse_in_a_handler_is_its_failure(
    monkeypatch: pytest.MonkeyPatch, handle: Any, reason: str
) -> None:
    consumer = Consumer(Gone(0))
    done, set_aside = _run(monkeypatch, consumer, handle)
    assert (done.processed, done.repeated, done.set_aside, set_aside) == (0, 0, 1, [reason])
    assert consumer.committed == [[1]]


class Wrapped(Exception):
    """An error of a library over the driver."""

    def __init__(self, orig: BaseException) -> None:
        super().__init__("wrapped")
        self.orig = orig


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.SerializationFailure("others"),
        psycopg.errors.DeadlockDetected("others"),
        Wrapped(psycopg.errors.SerializationFailure("others")),
    ],
)
def test_a_conflict_with_other_transactions_is_no_failure_of_the_message(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    tries: list[int] = []
    told: list[Waiting] = []

    def handle(*_: object) -> None:
        tries.append(1)
        if len(tries) < 8:
            raise error

    done, set_aside = _run(monkeypatch, Consumer(Gone(0)), handle, on_wait=told.append)
    assert (done.processed, set_aside, len(tries)) == (1, [], 8)
    assert [each.message_id for each in told] == ["m0"] * 7
    assert "others" in told[0].why or "wrapped" in told[0].why


def test_an_async_handler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(*_: object) -> None:
        pass

    with pytest.raises(InvalidInput, match="coroutine"):
        _run(monkeypatch, Consumer(Gone(0)), handle)

    class Awaited:
        def __await__(self) -> Any:
            yield

    done, set_aside = _run(monkeypatch, Consumer(Gone(0)), lambda *_: Awaited())
    assert (done.processed, len(set_aside)) == (0, 1)


def test_a_connection_with_an_open_transaction_is_refused() -> None:
    class Open(Session):
        info = SimpleNamespace(transaction_status=TransactionStatus.INTRANS)

    consumer = Consumer(Gone(0))
    with pytest.raises(InvalidInput, match="with an open transaction"):
        consume(consumer, Open, lambda *_: None, inbox=cast("Any", FirstTimes()), stop=lambda: consumer.empty)
    assert (consumer.committed, consumer.sought) == ([], [0])


def test_a_consumer_ends_positioned_at_the_first_unprocessed_record(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[int] = []
    consumer = Consumer(Gone(0), Gone(1), Gone(2), Gone(3))
    stops = iter([False, False, False, True, False, False])

    def handle(_: object, record: InboxRecord) -> None:
        handled.append(record.offset)

    done, _ = _run(monkeypatch, consumer, handle, stop=lambda: next(stops))
    assert (handled, done.processed, consumer.committed, consumer.sought) == ([0, 1], 2, [[2]], [2])
    broken = Consumer(Gone(5), Gone(6))
    with pytest.raises(KeyboardInterrupt):
        _run(monkeypatch, broken, _raising(KeyboardInterrupt()))
    assert (broken.committed, broken.sought) == ([], [5])


def test_a_stop_skips_no_unprocessed_record() -> None:
    tries: list[int] = []

    def connect() -> Any:
        tries.append(1)
        raise psycopg.OperationalError("away")

    consumer = Consumer(Gone(0))
    done = consume(consumer, connect, lambda *_: None, stop=lambda: len(tries) > 5, back_off_seconds=0.001)
    assert (done.processed, consumer.committed) == (0, [])


def test_only_permanent_client_errors_end_the_consumer() -> None:
    consumer = Consumer(Gone(0, KafkaError(KafkaError._PARTITION_EOF)))
    consume(consumer, lambda: cast("Any", None), lambda *_: None, stop=lambda: consumer.empty)
    refused = Consumer(Gone(0, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(KafkaException):
        consume(refused, lambda: cast("Any", None), lambda *_: None)
    with pytest.raises(InvalidInput, match="attempts"):
        consume(refused, lambda: cast("Any", None), lambda *_: None, attempts=0)


@pytest.mark.parametrize("seconds", [0, -0.1, 5.1])
def test_a_pause_out_of_bounds_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="back_off_seconds"):
        consume(Consumer(), lambda: cast("Any", None), lambda *_: None, back_off_seconds=seconds)


def test_a_message_gets_an_id_unless_it_has_one() -> None:
    one = with_event_id(Message(topic="t", headers={"a": "b"}))
    assert [name for name, _ in one.headers] == ["a", EVENT_ID]
    assert with_event_id(one) is one
    assert dict(with_event_id(Message(topic="t")).headers)[EVENT_ID] != dict(one.headers)[EVENT_ID]
    assert [
        name for name, _ in with_event_id(Message(topic="t", headers=cast("Any", deque([("a", "b")])))).headers
    ] == [
        "a",
        EVENT_ID,
    ]
    assert dict(with_event_id(Message(topic="t", headers={EVENT_ID: ""})).headers)[EVENT_ID], "empty is no id"
    for strange in ("no message", Message(topic="t", headers=cast("Any", "no pairs"))):
        assert with_event_id(strange) is strange


class Nameless(Gone):
    """A record with a header name that is not UTF-8."""

    def headers(self) -> list[tuple[str, bytes]]:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


class Unnamed(Gone):
    """A record without headers."""

    def headers(self) -> list[tuple[str, bytes]]:
        return []


@pytest.mark.parametrize("nameless", [Unnamed, Nameless])
def test_a_record_without_an_id_is_set_aside(monkeypatch: pytest.MonkeyPatch, nameless: type[Gone]) -> None:
    handled: list[int] = []

    def handle(_: object, record: InboxRecord) -> None:
        handled.append(record.offset)

    consumer = Consumer(Gone(0), nameless(1), Gone(2))
    done, reasons = _run(monkeypatch, consumer, handle)
    assert (handled, done.processed, done.set_aside, consumer.committed) == ([0, 2], 2, 1, [[3]])
    assert "the record at offset 1 of t/0 has no header event-id" in reasons[0]
    done, _ = _run(monkeypatch, Consumer(nameless(0)), handle, id_from_place=True)
    assert (done.processed, done.set_aside) == (1, 0)


def test_a_record_without_an_id_waits_for_the_dead_table(monkeypatch: pytest.MonkeyPatch) -> None:
    connects = itertools.count()

    def connect() -> Any:
        if next(connects) < 3:
            raise psycopg.OperationalError("away")
        return Session()

    monkeypatch.setattr(module, "set_aside", lambda *_, **__: None)
    consumer = Consumer(Unnamed(0))
    given: dict[str, Any] = {"inbox": FirstTimes(), "stop": lambda: consumer.empty, "back_off_seconds": 0.001}
    done = consume(consumer, connect, lambda *_: None, **given)
    assert (done.set_aside, consumer.committed) == (1, [[1]])


def test_an_unreadable_batch_stops_no_other_partition(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable = Gone(7, KafkaError(KafkaError._BAD_COMPRESSION))
    consumer = Consumer(unreadable, Gone(0), unreadable)
    done, _ = _run(monkeypatch, consumer, lambda *_: None)
    assert (done.processed, consumer.committed) == (1, [[1]])
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told.startswith("t/0 stands still at offset 7: ")
    assert "thresher inbox step-over" in told
