"""How records are processed, without servers: their ids, and a database that is away."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.inbox import RecordWithoutId
from thresher.inbox import consuming as module
from thresher.inbox.consuming import consume, id_of
from thresher.inbox.dead import InboxRecord
from thresher.outbox.message import EVENT_ID, Message, with_event_id


def record(*headers: tuple[str, bytes | None]) -> InboxRecord:
    return InboxRecord(topic="t", partition=1, offset=2, key=None, value=b"v", headers=headers)


def test_a_record_is_known_by_its_header_or_by_its_place() -> None:
    assert id_of(record(("a", b"b"), (EVENT_ID, b"m1"))) == "m1"
    assert id_of(record(), from_place=True) == "t/1/2"
    for without in (record(), record((EVENT_ID, None)), record((EVENT_ID, b""))):
        with pytest.raises(RecordWithoutId, match="has no header event-id"):
            id_of(without)


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\0b", b"x" * 300, "ä".encode()])
def test_any_id_can_be_stored_and_is_told_from_others(value: bytes) -> None:
    found = id_of(record((EVENT_ID, value)))
    assert 0 < len(found) <= 255
    assert "\0" not in found
    assert found != id_of(record((EVENT_ID, value + b"x")))


class Gone:
    """A message of the client's."""

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
    """Gives these messages once, and counts commits."""

    def __init__(self, *messages: Gone) -> None:
        self._messages = list(messages)
        self.committed: list[list[int]] = []
        self.empty = False

    def consume(self, _: int, __: float) -> list[Gone]:
        messages, self._messages = self._messages, []
        self.empty = not messages
        return messages

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        assert not asynchronous
        self.committed.append([each.offset for each in offsets])


class Session:
    """A connection that breaks when it is told to."""

    closed = False

    def close(self) -> None:
        self.closed = True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield


class FirstTimes:
    """An inbox in which nothing is a repeat."""

    name = TableName(table="thresher_inbox")

    @contextmanager
    def once(self, *_: object) -> Iterator[bool]:
        yield True


def test_a_database_that_is_away_is_waited_for_and_no_record_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_REST_SECONDS", 0.001)
    set_aside: list[object] = []
    monkeypatch.setattr(module, "set_aside", lambda *given, **_: set_aside.append(given))
    connects, handled = itertools.count(), []

    def connect() -> Any:
        if next(connects) % 2:
            raise psycopg.OperationalError("away")
        return Session()

    def handle(connection: Any, record: InboxRecord) -> None:
        handled.append(record.offset)
        if len(handled) < 6:
            connection.close()
            raise psycopg.OperationalError("the server closed the connection")

    consumer = Consumer(Gone(0), Gone(1))
    done = consume(consumer, connect, handle, inbox=cast("Any", FirstTimes()), attempts=2, stop=lambda: consumer.empty)
    assert handled == [0] * 6 + [1]
    assert (done.processed, done.set_aside, set_aside) == (2, 0, [])
    assert consumer.committed[-1] == [2]


def test_nothing_is_passed_over_that_was_not_processed_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_REST_SECONDS", 0.001)
    tries: list[int] = []

    def connect() -> Any:
        tries.append(1)
        raise psycopg.OperationalError("away")

    consumer = Consumer(Gone(0))
    done = consume(consumer, connect, lambda *_: None, stop=lambda: len(tries) > 5)
    assert (done.processed, consumer.committed) == (0, [])


def test_what_the_client_tells_by_the_way_ends_nothing_and_a_refusal_does() -> None:
    consumer = Consumer(Gone(0, KafkaError(KafkaError._PARTITION_EOF)))
    consume(consumer, lambda: cast("Any", None), lambda *_: None, stop=lambda: consumer.empty)
    refused = Consumer(Gone(0, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(KafkaException):
        consume(refused, lambda: cast("Any", None), lambda *_: None)
    with pytest.raises(InvalidInput, match="attempts"):
        consume(refused, lambda: cast("Any", None), lambda *_: None, attempts=0)


def test_a_message_gets_an_id_unless_it_has_one() -> None:
    one = with_event_id(Message(topic="t", headers={"a": "b"}))
    assert [name for name, _ in one.headers] == ["a", EVENT_ID]
    assert with_event_id(one) is one
    assert dict(with_event_id(Message(topic="t")).headers)[EVENT_ID] != dict(one.headers)[EVENT_ID]
    for strange in ("no message", Message(topic="t", headers=cast("Any", "no pairs"))):
        assert with_event_id(strange) is strange
