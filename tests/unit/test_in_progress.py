"""A message is kept alive until it is settled, and nothing follows the marker that settles it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from thresher.queue.in_progress import InProgress
from thresher.queue.markers import Answered, Markers
from thresher.queue.message import Message
from thresher.queue.metrics import Figures
from thresher.queue.problem import AlreadySettled, MarkerUnknown, QueueClosed
from thresher.queue.wire.marker import Marker, MarkerType, MessageId
from thresher.queue.wire.record import record_of

END, KEEPALIVE = MarkerType.END, MarkerType.KEEPALIVE
TIMEOUT = 60.0
FULL = KafkaError(KafkaError._QUEUE_FULL)


@dataclass
class RecordedMarkers:
    """Records the markers in the order in which they were queued."""

    sent: list[tuple[int, Marker]] = field(default_factory=list)
    waited: int = 0
    # Called with a marker before it is queued.
    before: Callable[[Marker], None] = field(default=lambda _: None)
    # Messages whose markers cannot be queued.
    failing: set[MessageId] = field(default_factory=set)
    # Whether the broker answers at once. If not, `owed` holds the pending answers.
    silent: bool = False
    owed: list[Answered] = field(default_factory=list)

    def settle(self, queue: bytes, partition: int, marker: Marker, answered: Answered | None = None) -> None:
        if marker.message_id in self.failing:
            raise MarkerUnknown("the queue is full")
        self._queue(queue, partition, marker, answered)

    def keep_alive(self, queue: bytes, partition: int, marker: Marker, answered: Answered) -> None:
        if marker.message_id in self.failing:
            answered(FULL)
        else:
            self._queue(queue, partition, marker, answered)

    def _queue(self, queue: bytes, partition: int, marker: Marker, answered: Answered | None) -> None:
        assert queue == b"q"
        self.before(marker)
        self.sent.append((partition, marker))
        if answered is not None:
            self.owed.append(answered)
        if not self.silent:
            self.answer(None)

    def answer(self, error: KafkaError | None) -> None:
        """Give all pending answers."""
        owed, self.owed = self.owed, []
        for each in owed:
            each(error)

    def confirmation(self) -> "RecordedMarkers":
        return self

    def wait(self) -> None:
        self.waited += 1

    def of(self, message: Message) -> list[MarkerType]:
        return [marker.type for _, marker in self.sent if marker.message_id == message.id]


class Scene:
    """Messages in progress, with a clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.markers = RecordedMarkers()
        self.figures = Figures()
        self.in_progress = InProgress(
            b"q",
            cast("Markers", self.markers),
            self.figures,
            redelivery_seconds=TIMEOUT,
            monotonic=lambda: self.now,
        )

    def start(self, *offsets: int, at: float | None = None, partition: int = 2, received: bool = True) -> list[Message]:
        records = [record_of(MessageId(0, offset), b"p", (), 1) for offset in offsets]
        messages = self.in_progress.started(records, partition, self.now if at is None else at)
        return self.in_progress.received(messages) if received else messages

    @staticmethod
    def marker(number: int, type_: MarkerType, **fields: object) -> Marker:
        """Return a marker for a message, with its id, origin and time."""
        id_ = MessageId(0, number)
        return Marker(type=type_, message_id=id_, origin_id=id_, enqueued_at_ms=1, **fields)  # type: ignore[arg-type]

    def after(self, seconds: float) -> list[Marker]:
        """Move the clock by these seconds, and return the KeepAlives that are then sent."""
        self.now += seconds
        before = len(self.markers.sent)
        self.in_progress.keep_alive()
        return [marker for _, marker in self.markers.sent[before:]]

    def count(self, name: str) -> float:
        readings = {each.family.name: each.value for each in self.figures.read("t", lambda: len(self.in_progress))}
        value = readings[f"thresher_queue_{name}"]
        assert isinstance(value, float)
        return value


@pytest.fixture
def scene() -> Scene:
    return Scene()


# KeepAlives


def test_an_ack_leaves_a_newer_message_with_its_id(scene: Scene) -> None:
    (old,) = scene.start(1)
    # The message topic was recreated, and the same consumer reads it.
    (new,) = scene.start(1)
    old.ack()
    assert len(scene.in_progress) == 1
    new.ack()
    assert len(scene.in_progress) == 0
    assert scene.markers.of(new) == [END, END]


def test_a_message_is_kept_alive_at_half_the_time_out(scene: Scene) -> None:
    scene.start(1)
    assert scene.after(29.9) == []
    (marker,) = scene.after(0.1)
    assert marker == scene.marker(1, KEEPALIVE, redeliver_after_ms=60_000)


def test_keep_alives_continue_until_the_end(scene: Scene) -> None:
    (message,) = scene.start(1)
    assert [len(scene.after(30.0)) for _ in range(5)] == [1] * 5
    message.ack()
    assert scene.after(30.0) == []


def test_a_message_that_waits_in_the_buffer_is_kept_alive(scene: Scene) -> None:
    scene.start(1, received=False)
    assert len(scene.after(30.0)) == 1


def test_the_time_counts_from_the_start_and_not_the_delivery(scene: Scene) -> None:
    scene.now = 20.0
    scene.start(1, at=0.0)
    assert len(scene.after(10.0)) == 1


def test_an_older_start_is_not_delayed_by_newer_keep_alives(scene: Scene) -> None:
    (first,) = scene.start(1)
    scene.after(30.0)
    # The Start was written at 10; the answer to its commit comes only now.
    scene.start(2, at=10.0)
    assert [marker.message_id.offset for marker in scene.after(10.0)] == [2]
    assert scene.markers.of(first) == [KEEPALIVE]


def test_markers_go_to_the_partition_of_the_start(scene: Scene) -> None:
    (one,) = scene.start(1, partition=2)
    (two,) = scene.start(2, partition=5)
    scene.after(30.0)
    one.ack()
    two.nack()
    assert [partition for partition, _ in scene.markers.sent] == [2, 5, 2, 5]


def test_a_failed_keep_alive_stops_no_other(scene: Scene) -> None:
    scene.start(1, 2, 3)
    scene.markers.failing = {MessageId(0, 1)}
    assert [marker.message_id.offset for marker in scene.after(30.0)] == [2, 3]
    scene.markers.failing.clear()
    assert [marker.message_id.offset for marker in scene.after(1.0)] == [1]
    assert len(scene.after(30.0)) == 3


def test_no_keep_alive_follows_an_unanswered_one(scene: Scene) -> None:
    scene.markers.silent = True
    scene.start(1)
    assert [len(scene.after(30.0)) for _ in range(4)] == [1, 0, 0, 0], "a silent broker is not asked again and again"
    scene.markers.answer(None)
    assert len(scene.after(0.0)) == 1, "although another KeepAlive is overdue"


def test_an_older_keep_alives_answer_does_not_count(scene: Scene) -> None:
    scene.markers.silent = True
    (message,) = scene.start(1)
    scene.after(30.0)
    message.extend(5.0)
    scene.markers.owed.pop(0)(None)
    assert scene.after(30.0) == []


# Messages that waited for too long


def test_a_message_not_kept_alive_in_time_is_returned(scene: Scene) -> None:
    (message,) = scene.start(1, received=False)
    scene.now = 60.1
    assert scene.in_progress.received([message]) == []
    assert [marker for _, marker in scene.markers.sent] == [
        scene.marker(message.id.offset, KEEPALIVE, redeliver_after_ms=0, undelivered=True, released=True)
    ]
    assert (scene.count("messages_expired"), scene.count("messages_consumed")) == (1, 0)
    assert scene.after(30.0) == []


def test_a_message_whose_commit_took_long_is_not_delivered(scene: Scene) -> None:
    scene.now = 100.0
    assert scene.start(1, at=30.0) == []
    assert [message.id.offset for message in scene.start(2, at=50.0)] == [2]


def test_a_confirmed_keep_alive_keeps_a_message_deliverable(scene: Scene) -> None:
    (message,) = scene.start(1, received=False)
    for _ in range(5):
        scene.after(30.0)
    assert scene.in_progress.received([message]) == [message]


def test_a_refused_keep_alive_extends_nothing(scene: Scene) -> None:
    scene.markers.silent = True
    (message,) = scene.start(1, received=False)
    scene.after(30.0)
    scene.markers.answer(FULL)
    scene.now = 61.0
    assert scene.in_progress.received([message]) == []


def test_a_keep_alive_confirmed_too_late_extends_nothing(scene: Scene) -> None:
    scene.markers.silent = True
    (message,) = scene.start(1, received=False)
    scene.after(30.0)
    scene.now = 61.0
    scene.markers.answer(None)
    assert scene.in_progress.received([message]) == []


def test_a_message_that_expired_during_a_pause_stays_expired(scene: Scene) -> None:
    (message,) = scene.start(1, received=False)
    (marker,) = scene.after(200.0)
    assert marker.undelivered, "given back, and not kept alive"
    assert scene.in_progress.received([message]) == []
    assert scene.count("messages_expired") == 1


def test_a_failed_keep_alive_is_retried_at_next_check(scene: Scene) -> None:
    scene.markers.silent = True
    scene.start(1)
    scene.after(30.0)
    scene.markers.answer(FULL)
    assert len(scene.after(1.0)) == 1


def test_a_returned_message_is_not_delivered(scene: Scene) -> None:
    messages = scene.start(1, received=False)
    scene.in_progress.give_back()
    assert scene.in_progress.received(messages) == []


# Settling


def test_an_ack_is_an_end_and_nothing_more(scene: Scene) -> None:
    (message,) = scene.start(1)
    message.ack()
    assert scene.markers.sent == [(2, scene.marker(1, END))]
    assert len(scene.in_progress) == 0
    assert scene.count("messages_acked") == 1


def test_a_nack_is_a_keep_alive_with_its_delay(scene: Scene) -> None:
    one, two, three = scene.start(1, 2, 3)
    one.nack()
    two.nack(1.5)
    three.nack(1.0001)
    assert [marker for _, marker in scene.markers.sent] == [
        scene.marker(1, KEEPALIVE, redeliver_after_ms=0, released=True),
        scene.marker(2, KEEPALIVE, redeliver_after_ms=1_500, released=True),
        scene.marker(3, KEEPALIVE, redeliver_after_ms=1_001, released=True),
    ]
    assert scene.count("messages_given_back") == 3


@pytest.mark.parametrize("given", ["5", None, True, float("nan"), -1, 43_201])
def test_an_invalid_delay_settles_nothing(scene: Scene, given: Any) -> None:
    (message,) = scene.start(1)
    with pytest.raises(ValueError, match="seconds"):
        message.nack(given)
    with pytest.raises(ValueError, match="seconds"):
        message.extend(given)
    assert len(scene.in_progress) == 1


def test_a_reject_is_an_expired_keep_alive_with_a_reason(scene: Scene) -> None:
    (message,) = scene.start(1)
    message.reject("malformed")
    assert scene.markers.sent == [(2, scene.marker(1, KEEPALIVE, redeliver_after_ms=0, reject_reason="malformed"))]
    assert scene.count("messages_rejected") == 1


def extend(message: Message) -> None:
    message.extend(5.0)


def settlements() -> list[Callable[[Message], None]]:
    return [lambda each: each.ack(), lambda each: each.nack(5.0), lambda each: each.reject("no")]


@pytest.mark.parametrize("settle", settlements(), ids=["ack", "nack", "reject"])
def test_no_keep_alive_follows_a_settlement(scene: Scene, settle: Callable[[Message], None]) -> None:
    one, two = scene.start(1, 2)
    settle(one)
    assert [marker.message_id for marker in scene.after(30.0)] == [two.id]


@pytest.mark.parametrize("settle", settlements(), ids=["ack", "nack", "reject"])
def test_the_first_settlement_counts(scene: Scene, settle: Callable[[Message], None]) -> None:
    (message,) = scene.start(1)
    settle(message)
    for again in (*settlements(), extend):
        with pytest.raises(AlreadySettled, match="message 0-1"):
            again(message)
    assert len(scene.markers.sent) == 1


def test_messages_are_settled_in_any_order(scene: Scene) -> None:
    messages = scene.start(1, 2, 3)
    for message in reversed(messages):
        message.ack()
    assert [marker.message_id.offset for _, marker in scene.markers.sent] == [3, 2, 1]


def test_only_a_sync_ack_waits(scene: Scene) -> None:
    one, two = scene.start(1, 2)
    one.ack()
    assert scene.markers.waited == 0
    two.ack(sync=True)
    assert scene.markers.waited == 1


def test_a_message_with_an_unqueued_ack_finally_expires(scene: Scene) -> None:
    (message,) = scene.start(1)
    scene.markers.failing = {message.id}
    with pytest.raises(MarkerUnknown):
        message.ack()
    assert len(scene.in_progress) == 0
    scene.markers.failing.clear()
    assert scene.after(30.0) == []
    with pytest.raises(AlreadySettled):
        message.ack()
    assert scene.count("messages_acked") == 0


# Extending


def test_an_extension_is_a_keep_alive_at_once(scene: Scene) -> None:
    (message,) = scene.start(1)
    message.extend(600.0)
    assert scene.markers.sent == [(2, scene.marker(message.id.offset, KEEPALIVE, redeliver_after_ms=600_000))]


def test_the_next_keep_alive_does_not_undo_an_extension(scene: Scene) -> None:
    (message,) = scene.start(1)
    message.extend(600.0)
    left = [marker.redeliver_after_ms for _ in range(20) for marker in scene.after(30.0)]
    assert left[:3] == [570_000, 540_000, 510_000]
    assert left[-3:] == [60_000] * 3, "and then at the usual interval"


def test_a_short_extension_makes_nothing_shorter(scene: Scene) -> None:
    (message,) = scene.start(1)
    message.extend(600.0)
    message.extend(1.0)
    assert [marker.redeliver_after_ms for _, marker in scene.markers.sent] == [600_000, 600_000]


def test_a_short_extension_is_at_least_the_time_out(scene: Scene) -> None:
    (message,) = scene.start(1)
    message.extend(1.0)
    assert [marker.redeliver_after_ms for _, marker in scene.markers.sent] == [60_000]


@pytest.mark.parametrize("seconds", [0.0, -1.0, 43_200.1, float("nan"), float("inf")])
def test_an_extension_out_of_bounds_is_refused(scene: Scene, seconds: float) -> None:
    (message,) = scene.start(1)
    with pytest.raises(ValueError, match="at most 43200 seconds"):
        message.extend(seconds)
    assert scene.markers.sent == []


@pytest.mark.parametrize("seconds", [-0.1, 43_200.1, float("nan"), float("inf")])
def test_a_delay_out_of_bounds_leaves_the_message_in_progress(scene: Scene, seconds: float) -> None:
    (message,) = scene.start(1)
    with pytest.raises(ValueError, match="0 to 43200 seconds"):
        message.nack(seconds)
    message.ack()
    assert scene.markers.of(message) == [END]


# Giving back


def test_the_rest_is_given_back_at_once(scene: Scene) -> None:
    one, two, three = scene.start(1, 2, 3)
    two.ack()
    scene.in_progress.give_back()
    assert [marker for _, marker in scene.markers.sent[1:]] == [
        scene.marker(each.id.offset, KEEPALIVE, redeliver_after_ms=0, released=True) for each in (one, three)
    ]
    assert scene.count("messages_given_back") == 2
    assert scene.after(30.0) == []


def test_only_undelivered_messages_are_marked_undelivered(scene: Scene) -> None:
    scene.start(1)
    scene.start(2, received=False)
    scene.in_progress.give_back()
    assert [marker.undelivered for _, marker in scene.markers.sent] == [False, True]


def test_a_returned_message_cannot_be_settled(scene: Scene) -> None:
    one, two = scene.start(1, 2)
    two.ack()
    scene.in_progress.give_back()
    for call in (*settlements(), extend):
        with pytest.raises(QueueClosed, match="message 0-1 was given back"):
            call(one)
    assert len(scene.markers.sent) == 2


def test_a_message_that_cannot_be_returned_blocks_no_other(scene: Scene) -> None:
    scene.start(1, 2, 3)
    scene.markers.failing = {MessageId(0, 1)}
    scene.in_progress.give_back()
    assert [marker.message_id.offset for _, marker in scene.markers.sent] == [2, 3]


def test_a_message_started_after_close_is_given_back(scene: Scene) -> None:
    scene.in_progress.give_back()
    scene.start(1, received=False)
    assert [marker.undelivered for _, marker in scene.markers.sent] == [True]
    assert len(scene.in_progress) == 0


# Threads


def test_no_keep_alive_follows_another_threads_end(scene: Scene) -> None:
    (message,) = scene.start(1)
    acking = threading.Thread(target=message.ack)

    def ack_meanwhile(marker: Marker) -> None:
        if marker.type is KEEPALIVE:
            acking.start()
            # The ack waits for the KeepAlive's lock. Without a lock it would be queued first.
            acking.join(0.05)

    scene.markers.before = ack_meanwhile
    scene.after(30.0)
    acking.join()
    assert scene.markers.of(message) == [KEEPALIVE, END]
    assert scene.after(30.0) == []


def test_no_extension_follows_another_threads_end(scene: Scene) -> None:
    (message,) = scene.start(1)
    acking = threading.Thread(target=message.ack)

    def ack_meanwhile(marker: Marker) -> None:
        if marker.type is KEEPALIVE:
            acking.start()
            acking.join(0.05)

    scene.markers.before = ack_meanwhile
    message.extend(600.0)
    acking.join()
    assert scene.markers.of(message) == [KEEPALIVE, END]


def test_only_one_of_many_threads_settles_a_message() -> None:
    scene = Scene()
    (message,) = scene.start(1)
    together = threading.Barrier(4)
    refused: list[AlreadySettled] = []

    def settle(call: Callable[[Message], None]) -> None:
        together.wait()
        try:
            call(message)
        except AlreadySettled as error:
            refused.append(error)

    threads = [threading.Thread(target=settle, args=(call,)) for call in (*settlements(), settlements()[0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    assert len(scene.markers.sent) == 1
