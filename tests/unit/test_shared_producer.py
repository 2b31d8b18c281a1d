"""Every record gets one report, also when its client is replaced. A marker that settles a message is queued again."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.processes import eventually
from thresher.kafka.problem import BrokerLost
from thresher.queue.markers import Markers
from thresher.queue.metrics import Figures
from thresher.queue.problem import MarkerUnknown, QueueClosed
from thresher.queue.sending.shared_producer import SharedProducer
from thresher.queue.wire.marker import Marker, MarkerType, MessageId

FATAL = KafkaError(KafkaError._FATAL, "out of order", True)
PURGED, TIMED_OUT = KafkaError(KafkaError._PURGE_QUEUE), KafkaError(KafkaError._MSG_TIMED_OUT)
END = Marker(type=MarkerType.END, message_id=MessageId(0, 1))
ALIVE = Marker(type=MarkerType.KEEPALIVE, message_id=MessageId(0, 1), redeliver_after_ms=60_000)
Report = Callable[[KafkaError | None, Any], None]
SOON_SECONDS = 30.0


@dataclass
class Client:
    """A producer that keeps its records until the test answers. `poll` then calls the reports."""

    records: list[tuple[bytes, Report]] = field(default_factory=list)
    reports: list[tuple[Report, KafkaError | None]] = field(default_factory=list)
    refusing: Exception | None = None
    # Called within `produce`, before the record is queued.
    meanwhile: Callable[[], None] = field(default=lambda: None)
    polling: bool = False

    def __len__(self) -> int:
        return len(self.records) + len(self.reports)

    def produce(self, _topic: str, value: bytes, _key: bytes, _partition: int, report: Report, *_: Any) -> None:
        if self.refusing is not None:
            raise self.refusing
        self.meanwhile()
        self.records.append((value, report))

    def answer(self, error: KafkaError | None = None) -> None:
        """Let the next poll report all records with this error, or as delivered."""
        records, self.records = self.records, []
        self.reports += [(report, error) for _, report in records]

    def purge(self) -> None:
        self.answer(PURGED)

    def poll(self, _seconds: float) -> int:
        assert not self.polling, "librdkafka aborts the process on nested calls"
        self.polling = True
        try:
            while self.reports:
                report, error = self.reports.pop(0)
                report(error, None)
        finally:
            self.polling = False
        time.sleep(0.0005)
        return 0

    def flush(self, _seconds: float) -> int:
        raise AssertionError("only the thread serves reports")


class Scene:
    """A shared producer with its clients, in the order in which they were made."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        # Raised instead of making another client.
        self.unmakeable: Exception | None = None
        before = set(threading.enumerate())
        self.producer = SharedProducer("marking", self._make)
        # The producer's own thread.
        (self.thread,) = [each for each in set(threading.enumerate()) - before if each.name == "thresher-queue-marking"]
        self.figures = Figures()
        self.markers = Markers(self.producer, "markers", self.figures, confirm_seconds=1.0)
        # Error codes, because a client's error cannot be compared with None.
        self.answers: list[int | None] = []

    def _make(self) -> Producer:
        if self.unmakeable is not None:
            raise self.unmakeable
        self.clients.append(Client())
        return cast("Producer", self.clients[-1])

    def replace(self) -> None:
        """Make the client fail fatally, and queue another record."""
        self.clients[-1].refusing = KafkaException(FATAL)
        self.produce(b"other")

    def produce(self, value: bytes) -> None:
        self.producer.produce("t", value, b"k", lambda error, _: self.note(error))

    def note(self, error: KafkaError | None) -> None:
        self.answers.append(None if error is None else error.code())

    def values(self) -> list[bytes]:
        """Return the values that the last client holds."""
        return [value for value, _ in self.clients[-1].records]

    def answered(self, count: int = 1) -> list[int | None]:
        eventually(lambda: len(self.answers) >= count, SOON_SECONDS)
        return self.answers


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.producer.close(0.0)


def test_a_full_queue_is_awaited_only_on_request(scene: Scene) -> None:
    scene.clients[0].refusing = BufferError()
    with pytest.raises(BrokerLost, match="client is full"):
        scene.producer.produce("t", b"v", b"k", lambda *_: None, wait=False)


def test_an_ack_at_a_full_queue_raises(scene: Scene) -> None:
    scene.clients[0].refusing = BufferError()
    with pytest.raises(MarkerUnknown, match="the message is redelivered"):
        scene.markers.settle(b"q", 0, END)


def test_a_keep_alive_at_a_full_queue_is_reported(scene: Scene) -> None:
    scene.clients[0].refusing = BufferError()
    scene.markers.keep_alive(b"q", 0, ALIVE, scene.note)
    assert scene.answers != [None]


# Clients that are replaced


def test_an_end_of_a_failed_client_is_queued_again(scene: Scene) -> None:
    scene.markers.settle(b"q", 0, END, scene.note)
    (end,) = scene.values()
    scene.replace()
    assert len(scene.clients) == 2
    eventually(lambda: end in scene.values(), SOON_SECONDS)
    assert scene.answers == [], "not yet"
    scene.clients[1].answer()
    assert scene.answered(2) == [None, None]


def test_an_end_is_queued_again_while_the_producer_is_closed(scene: Scene) -> None:
    scene.markers.settle(b"q", 0, END, scene.note)
    scene.clients[0].refusing = KafkaException(FATAL)
    scene.produce(b"other")
    closing = threading.Thread(target=lambda: scene.producer.close(SOON_SECONDS))
    closing.start()
    eventually(lambda: len(scene.values()) == 2, SOON_SECONDS)
    scene.clients[1].answer()
    closing.join(SOON_SECONDS)
    assert scene.answers == [None, None]


def test_a_failed_clients_keep_alive_is_not_queued_again(scene: Scene) -> None:
    # An End may already be queued, and no marker may follow an End.
    scene.markers.keep_alive(b"q", 0, ALIVE, scene.note)
    scene.replace()
    assert scene.answered() != [None]
    assert scene.values() == [b"other"]


def test_a_refused_end_is_not_queued_again(scene: Scene) -> None:
    scene.markers.settle(b"q", 0, END, scene.note)
    scene.clients[0].answer(TIMED_OUT)
    assert scene.answered() == [TIMED_OUT.code()]
    assert scene.values() == []


def test_a_timed_out_record_replaces_its_client_once(scene: Scene) -> None:
    def timed_out(error: KafkaError | None, _: object) -> None:
        scene.note(error)
        scene.producer.distrust()

    for _ in range(3):
        scene.producer.produce("t", b"v", b"k", timed_out)
    first = scene.clients[0]
    _, report = first.records.pop(0)
    first.reports.append((report, TIMED_OUT))
    assert scene.answered(3) == [TIMED_OUT.code(), PURGED.code(), PURGED.code()]
    assert len(scene.clients) == 2
    assert scene.values() == [], "records in flight are not sent again: the broker may have them"


def test_a_record_of_a_replaced_client_is_reported(scene: Scene) -> None:
    first = scene.clients[0]

    def replaced() -> None:
        first.meanwhile = lambda: None
        scene.producer._replace(cast("Producer", first), "test")
        eventually(lambda: not scene.producer._replaced, SOON_SECONDS)

    first.meanwhile = replaced
    scene.produce(b"late")
    assert scene.answered() == [PURGED.code()]


def test_a_failed_replacement_keeps_the_old_client(scene: Scene) -> None:
    scene.unmakeable = KafkaException(KafkaError(KafkaError._INVALID_ARG, "no such file"))
    scene.producer.distrust()
    scene.produce(b"v")
    scene.clients[0].answer()
    assert scene.answered() == [None]


# Flushing


def test_a_flush_waits_for_records_of_replaced_clients(scene: Scene) -> None:
    scene.produce(b"early")
    first = scene.clients[0]
    kept = list(first.records)
    first.records.clear()
    scene.replace()
    first.records += kept
    scene.producer._replaced.append(cast("Producer", first))
    scene.clients[1].answer()
    assert not scene.producer.flush(0.05)
    first.answer()
    assert scene.producer.flush(SOON_SECONDS)


def test_a_flush_that_is_done_has_called_every_report(scene: Scene) -> None:
    done: list[bool] = []

    def slow(*_: object) -> None:
        time.sleep(0.05)
        done.append(True)

    for _ in range(5):
        scene.producer.produce("t", b"v", b"k", slow)
        scene.clients[0].answer()
        assert scene.producer.flush(SOON_SECONDS)
        assert done.pop()


def test_a_flush_inside_a_report_does_not_wait(scene: Scene) -> None:
    flushed: list[bool] = []
    scene.producer.produce("t", b"v", b"k", lambda *_: flushed.append(scene.producer.flush(SOON_SECONDS)))
    scene.clients[0].answer()
    eventually(lambda: flushed, SOON_SECONDS)


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_report_that_raises_ends_no_other(scene: Scene, raised: type[BaseException]) -> None:
    def fail(*_: object) -> None:
        raise raised

    scene.producer.produce("t", b"v", b"k", fail)
    scene.clients[0].answer()
    eventually(lambda: not len(scene.clients[0]), SOON_SECONDS)
    scene.produce(b"next")
    scene.clients[0].answer()
    assert scene.answered() == [None]


# Closing


def test_records_of_a_closed_producer_are_reported_once(scene: Scene) -> None:
    scene.markers.settle(b"q", 0, END, scene.note)
    scene.producer.close(0.01)
    assert scene.answers == [PURGED.code()]
    with pytest.raises(QueueClosed):
        scene.producer.produce("t", b"v", b"k", lambda *_: None)


def test_a_record_queued_during_a_close_is_reported(scene: Scene) -> None:
    scene.clients[0].meanwhile = lambda: scene.producer.close(0.0)
    scene.produce(b"v")
    assert scene.answers == [PURGED.code()]


def test_a_report_may_close_the_producer_concurrently(scene: Scene) -> None:
    scene.producer.produce("t", b"v", b"k", lambda *_: scene.producer.close(SOON_SECONDS))
    scene.clients[0].answer()
    scene.producer.close(SOON_SECONDS)
    assert not scene.thread.is_alive()


def test_an_interrupted_close_is_finished_by_the_next(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(scene.thread, "join", broken_off)
        with pytest.raises(KeyboardInterrupt):
            scene.producer.close(0.01)
    scene.producer.close(0.01)
    assert not scene.thread.is_alive()
