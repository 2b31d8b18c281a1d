"""Every record has one report, whatever becomes of the client; a marker that settles a message is not lost with it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.processes import eventually
from thresher.kafka.problem import BrokerLost
from thresher.queue.markers import Markers
from thresher.queue.metrics import Figures
from thresher.queue.problem import MarkerUnknown, QueueClosed
from thresher.queue.shared_producer import SharedProducer
from thresher.queue.wire.marker import Marker, MarkerType, MessageId

FATAL = KafkaError(KafkaError._FATAL, "out of order", True)
END = Marker(type=MarkerType.END, message_id=MessageId(0, 1))
ALIVE = Marker(type=MarkerType.KEEPALIVE, message_id=MessageId(0, 1), redeliver_after_ms=60_000)


@dataclass
class Client:
    """A producer that keeps what it is given until somebody tells what became of it."""

    records: list[tuple[bytes, Callable[..., None]]] = field(default_factory=list)
    purged: list[Callable[..., None]] = field(default_factory=list)
    refusing: Exception | None = None
    given_up: bool = False
    # Called within `produce`, before it returns.
    meanwhile: Callable[[], None] = field(default=lambda: None)

    def produce(self, _topic: str, value: bytes, _key: bytes, _partition: int, report: Any, *_: Any) -> None:
        if self.refusing is not None:
            raise self.refusing
        self.meanwhile()
        self.records.append((value, report))

    def purge(self) -> None:
        self.purged += [report for _, report in self.records]
        self.records.clear()

    def flush(self, _seconds: float) -> int:
        purged, self.purged = self.purged, []
        for report in purged:
            report(KafkaError(KafkaError._PURGE_QUEUE), None)
        self.given_up = self.given_up or bool(purged)
        return len(self.records)

    def poll(self, _seconds: float) -> int:
        threading.Event().wait(0.001)
        return 0

    def answer(self, error: KafkaError | None = None) -> None:
        records, self.records = self.records, []
        for _, report in records:
            report(error, None)


class Scene:
    """Clients in the order in which they were made."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.producer = SharedProducer("marking", self._make)
        self.figures = Figures()
        self.markers = Markers(self.producer, "markers", self.figures, confirm_seconds=1.0)
        self.answers: list[KafkaError | None] = []

    def _make(self) -> Producer:
        self.clients.append(Client())
        return cast("Producer", self.clients[-1])

    def replace(self) -> None:
        """Have the client meet a fatal error, another record be queued, and what it had be reported."""
        failed = self.clients[-1]
        failed.refusing = KafkaException(FATAL)
        self.producer.produce("t", b"other", b"k", lambda *_: None)
        eventually(lambda: failed.given_up, 30)

    def values(self) -> list[bytes]:
        """What the last client has."""
        return [value for value, _ in self.clients[-1].records]


@pytest.fixture
def scene() -> Any:
    made = Scene()
    yield made
    for client in made.clients:
        client.answer()
    made.producer.close(0.1)


def test_a_full_queue_is_not_waited_for_unless_that_is_asked(scene: Scene) -> None:
    scene.clients[0].refusing = BufferError()
    with pytest.raises(BrokerLost, match="queue is full"):
        scene.producer.produce("t", b"v", b"k", lambda *_: None, wait=False)


def test_an_ack_that_finds_a_full_queue_is_told_so(scene: Scene) -> None:
    scene.clients[0].refusing = BufferError()
    with pytest.raises(MarkerUnknown, match="the message is redelivered"):
        scene.markers.settle(b"q", 0, END)


def test_a_keep_alive_that_finds_a_full_queue_is_answered(scene: Scene) -> None:
    scene.clients[0].refusing = BufferError()
    scene.markers.keep_alive(b"q", 0, ALIVE, scene.answers.append)
    (error,) = scene.answers
    assert error is not None


def test_an_end_that_a_failed_producer_still_had_is_queued_again(scene: Scene) -> None:
    scene.markers.settle(b"q", 0, END, scene.answers.append)
    (end,) = scene.values()
    scene.replace()
    assert len(scene.clients) == 2
    assert end in scene.values()
    assert scene.answers == [], "not yet"
    scene.clients[1].answer()
    assert scene.answers == [None]


def test_a_keep_alive_that_a_failed_producer_still_had_is_not(scene: Scene) -> None:
    # An End may be queued already, and nothing follows an End.
    scene.markers.keep_alive(b"q", 0, ALIVE, scene.answers.append)
    scene.replace()
    assert scene.values() == [b"other"]
    (error,) = scene.answers
    assert error is not None


def test_an_end_that_was_refused_is_not_queued_again(scene: Scene) -> None:
    scene.markers.settle(b"q", 0, END, scene.answers.append)
    scene.clients[0].answer(KafkaError(KafkaError._MSG_TIMED_OUT))
    assert scene.values() == []
    assert len(scene.answers) == 1


def test_what_a_closed_producer_still_had_is_reported_and_not_queued_again(scene: Scene) -> None:
    scene.markers.settle(b"q", 0, END, scene.answers.append)
    scene.producer.close(0.01)
    (error,) = scene.answers
    assert error is not None
    with pytest.raises(QueueClosed):
        scene.producer.produce("t", b"v", b"k", lambda *_: None)


def test_a_record_that_is_queued_while_the_producer_is_closed_is_reported(scene: Scene) -> None:
    scene.clients[0].meanwhile = lambda: scene.producer.close(0.01)
    reported: list[object] = []
    scene.producer.produce("t", b"v", b"k", lambda *_: reported.append(_))
    assert len(reported) == 1


def test_a_report_may_close_the_producer(scene: Scene) -> None:
    """By the thread that serves reports: it must not wait for other reports within one."""
    client = scene.clients[0]
    within: list[bool] = []
    flushed: list[bool] = []

    def polled(_seconds: float) -> int:
        within.append(True)
        scene.producer.close(0.01)
        within.pop()
        return 0

    flush = client.flush

    def flushes(seconds: float) -> int:
        flushed.append(bool(within))
        return flush(seconds)

    client.flush = flushes  # type: ignore[method-assign,assignment]
    client.poll = polled  # type: ignore[method-assign]
    eventually(lambda: not scene.producer._thread.is_alive(), 30)
    assert flushed
    assert not any(flushed)


def test_a_client_is_replaced_after_a_record_that_timed_out_and_once_for_all_of_them(scene: Scene) -> None:
    queued_at = time.monotonic()
    reported: list[Any] = []
    scene.producer.produce("t", b"in flight", b"k", lambda error, _: reported.append(error))
    for _ in range(3):
        scene.producer.distrust(queued_at)
    eventually(lambda: reported, 30)
    assert len(scene.clients) == 2
    assert reported[0] is not None, "it is not sent again: the broker may have it"
    assert scene.values() == []


def test_a_close_that_was_broken_off_is_done_by_the_next(scene: Scene) -> None:
    def broken_off(_seconds: float) -> int:
        raise KeyboardInterrupt

    flush, scene.clients[0].flush = scene.clients[0].flush, broken_off  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        scene.producer.close(0.01)
    scene.clients[0].flush = flush  # type: ignore[method-assign]
    scene.producer.close(0.01)
    assert not scene.producer._thread.is_alive()
