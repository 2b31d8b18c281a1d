"""The two implementations for the contract tests of queues: in memory and on Kafka.

Redelivery is the tracker's work. `MemoryQueueService` redelivers by itself, so there a message is received again; on
Kafka the test reads the markers that a tracker would act on. Messages are judged once their consumers are closed.
"""

import math
from dataclasses import replace
from typing import Any, Protocol

from tests.processes import eventually
from tests.queue.topics import QueueTopics
from thresher.queue import Message, MessageId, Queue, QueueConsumer, QueueService
from thresher.queue.memory import MemoryQueueService
from thresher.queue.wire.marker import Marker, MarkerType

SOON_SECONDS = 30.0
# The longest stall of the machine between two calls.
STALL_SECONDS = 60.0

Service = QueueService | MemoryQueueService


class World(Protocol):
    """A service, and checks of its messages."""

    @property
    def service(self) -> Service:
        """The service, for all tests of this world."""

    def make_service(self, **keys: Any) -> Service:
        """Return another service, with these configuration keys."""

    def require_ended(self, queue: Queue, sent: MessageId) -> None:
        """Fail unless a message was processed and will not be redelivered."""

    def require_redelivery(self, queue: Queue, sent: MessageId, *, delay: float = 0.0, counted: bool = True) -> None:
        """Fail unless a message is redelivered after `delay` seconds, with or without its delivery counted."""

    def require_dead(self, queue: Queue, sent: MessageId, reason: str) -> None:
        """Fail unless a message becomes a dead letter and is not redelivered."""

    def require_extended(self, queue: Queue, sent: MessageId, seconds: float) -> None:
        """Fail unless the redelivery of a message was postponed by `seconds` before its ack."""

    def require_delayed(self, queue: Queue, sent: MessageId, delay: float) -> None:
        """Fail unless a message is first delivered after `delay` seconds."""

    def require_limits(self, queue: Queue, sent: MessageId, *, max_deliveries: int, ttl: float) -> None:
        """Fail unless a message that was nacked once has these limits."""


class MemoryWorld:
    """In memory, with a clock that the test sets."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._redelivered: dict[MessageId, Message] = {}
        self.service = self.make_service()

    def make_service(self, **keys: Any) -> MemoryQueueService:
        return MemoryQueueService(keys, monotonic=lambda: self._now)

    def require_ended(self, queue: Queue, sent: MessageId) -> None:
        assert self._again(queue, sent) is None
        self._now += 86_400
        assert self._again(queue, sent) is None
        assert sent not in {letter.origin_id for letter in self.service.dead_letters(queue.id)}

    def require_redelivery(self, queue: Queue, sent: MessageId, *, delay: float = 0.0, counted: bool = True) -> None:
        if delay:
            self._now += delay - 0.001
            assert self._again(queue, sent) is None
            self._now += 0.002
        again = self._again(queue, sent)
        assert again is not None
        assert again.id != sent
        assert again.delivery_count == 1 + counted

    def require_dead(self, queue: Queue, sent: MessageId, reason: str) -> None:
        assert self._again(queue, sent) is None
        (letter,) = [letter for letter in self.service.dead_letters(queue.id) if letter.origin_id == sent]
        assert letter.reason == reason

    def require_extended(self, queue: Queue, sent: MessageId, seconds: float) -> None:  # noqa: ARG002 - nothing times out
        self.require_ended(queue, sent)

    def require_delayed(self, queue: Queue, sent: MessageId, delay: float) -> None:
        self._now += delay - 0.001
        assert self._again(queue, sent) is None
        self._now += 0.002
        message = self._again(queue, sent)
        assert message is not None
        assert message.delivery_count == 1

    def require_limits(self, queue: Queue, sent: MessageId, *, max_deliveries: int, ttl: float) -> None:  # noqa: ARG002
        with queue.consumer() as consumer:
            for delivery in range(2, max_deliveries + 1):
                (message,) = receive(consumer)
                assert message.delivery_count == delivery
                message.nack()
            assert consumer.receive(0) is None
        self.require_dead(
            queue, sent, f"it was delivered {max_deliveries} times, and max-deliveries is {max_deliveries}"
        )

    def _again(self, queue: Queue, sent: MessageId) -> Message | None:
        """Return the redelivery of a message, or None if there was none by now."""
        with queue.consumer() as consumer:
            while (message := consumer.receive(0)) is not None:
                message.ack()
                assert message.origin_id not in self._redelivered
                self._redelivered[message.origin_id] = message
        return self._redelivered.get(sent)


class KafkaWorld:
    """On a broker: the markers show the fate of a message."""

    def __init__(self, bootstrap: str) -> None:
        # A short poll, because closing a consumer waits for its poll to end.
        self._topics = QueueTopics(bootstrap, marker_partitions=3, consumer_next_message_timeout=50)
        self.service = self.make_service()

    def make_service(self, **keys: Any) -> QueueService:
        return QueueService(self._topics.config.model_copy(update=keys))

    def require_ended(self, queue: Queue, sent: MessageId) -> None:
        (end,) = self._behind_start(queue, sent)
        assert end == _named(sent, MarkerType.END)

    def require_redelivery(self, queue: Queue, sent: MessageId, *, delay: float = 0.0, counted: bool = True) -> None:
        (last,) = self._behind_start(queue, sent)
        assert last == _named(
            sent,
            MarkerType.KEEPALIVE,
            redeliver_after_ms=math.ceil(delay * 1000),
            undelivered=not counted,
            released=True,
        )

    def require_dead(self, queue: Queue, sent: MessageId, reason: str) -> None:
        (last,) = self._behind_start(queue, sent)
        assert last == _named(sent, MarkerType.KEEPALIVE, reject_reason=reason)

    def require_extended(self, queue: Queue, sent: MessageId, seconds: float) -> None:
        kept, end = self._behind_start(queue, sent, 2)
        assert kept.type is MarkerType.KEEPALIVE
        # The time counts from the marker, which is written a little later than the call.
        assert 0 <= seconds * 1000 - kept.redeliver_after_ms <= STALL_SECONDS * 1000
        assert end.type is MarkerType.END

    def require_delayed(self, queue: Queue, sent: MessageId, delay: float) -> None:
        (start,) = [each.marker for each in self._topics.markers(queue.id) if each.marker.message_id == sent]
        assert (start.type, start.redeliver_after_ms, start.undelivered) == (MarkerType.START, delay * 1000, True)

    def require_limits(self, queue: Queue, sent: MessageId, *, max_deliveries: int, ttl: float) -> None:
        start, _ = [each.marker for each in self._topics.markers(queue.id) if each.marker.message_id == sent]
        assert (start.max_deliveries, start.ttl_ms) == (max_deliveries, ttl * 1000)

    def _behind_start(self, queue: Queue, sent: MessageId, count: int = 1) -> list[Marker]:
        """Return the markers after a message's Start, once there are `count`; all must be in the Start's partition."""
        found: list[Marker] = []

        def complete() -> bool:
            placed = [each for each in self._topics.markers(queue.id) if each.marker.message_id == sent]
            assert len({each.partition for each in placed}) <= 1
            found[:] = [each.marker for each in placed]
            return len(found) > count

        # A transaction's markers are hidden until the broker has ended it.
        eventually(complete, SOON_SECONDS, lambda: f"{sent} has {found}")
        start, *behind = found
        assert (start.type, start.key) == (MarkerType.START, queue.id)
        assert (start.delivery_count, start.origin_id) == (1, sent)
        # These fields distinguish it from another message that may get the same id.
        assert {(each.origin_id, each.enqueued_at_ms) for each in behind} == {(sent, start.enqueued_at_ms)}
        return [replace(each, enqueued_at_ms=None) for each in behind]


def _named(sent: MessageId, type_: MarkerType, **fields: Any) -> Marker:
    return Marker(type=type_, message_id=sent, origin_id=sent, **fields)


def send(queue: Queue, *payloads: bytes) -> list[MessageId]:
    with queue.producer() as producer:
        return [sent.result(SOON_SECONDS) for sent in [producer.send_async(payload) for payload in payloads]]


def receive(consumer: QueueConsumer, count: int = 1) -> list[Message]:
    """Receive exactly `count` messages."""
    messages: list[Message] = []
    while len(messages) < count:
        batch = consumer.receive_batch(count - len(messages), SOON_SECONDS)
        assert batch, f"{len(messages)} of {count} messages came"
        messages += batch
    return messages
