"""Queues in the memory of one process, for the tests of applications: no broker, no topics, no tracker.

`MemoryQueueService` makes the same queues, producers and consumers as `QueueService`, and refuses the same input. It
plays the broker and the tracker:

1. Each message goes to one consumer of its queue. A consumer starts a few messages ahead of its application, and never
   has more than `max-in-progress` unsettled.
2. A nacked message comes back at the end of its queue when its delay has passed, with a delivery count of one more. One
   that was sent with a delay comes when that has passed.
3. A consumer that is closed gives back what it has not settled, at once. Messages that its application has not received
   keep their delivery count.
4. Each delivery has an id of its own, and the origin id stays: it is what `send` returned.
5. A message that was rejected, or is past its limits, is one of its queue's `dead_letters`.

The consumers of this process do not die, so no message is redelivered by a time-out: `extend` does nothing.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from thresher.queue.base_service import BaseQueueService
from thresher.queue.configuration import QueueConfig, configured
from thresher.queue.consumer import QueueConsumer
from thresher.queue.memory.member import MemoryMember
from thresher.queue.memory.tracker import DeadLetter, MemoryTracker
from thresher.queue.message import MessageId
from thresher.queue.queue import queue_id
from thresher.queue.wire.marker import decode

# Required keys, for a service that has no servers.
_NOWHERE = {"bootstrap-servers": "memory:9092", "message-topic": "messages", "marker-topic": "markers"}


class MemoryQueueService(BaseQueueService):
    """The queues of one test. After `close`, dead letters can still be read."""

    def __init__(
        self,
        config: QueueConfig | Mapping[str, Any] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`config` may be that of the application; servers and topics may be left out. Raises `ConfigurationInvalid`.

        Delays count on `monotonic`. Each `receive` looks at it, so that a test may set a clock of its own forward.
        """
        if not isinstance(config, QueueConfig):
            config = {**_NOWHERE, **{str(name).replace("_", "-"): value for name, value in (config or {}).items()}}
        super().__init__(configured(config))
        self._tracker = MemoryTracker(self.config, monotonic, wall_clock)

    def dead_letters(self, queue: str | bytes) -> tuple[DeadLetter, ...]:
        """Return the messages of a queue that were rejected or were past their limits, the earliest first."""
        return self._tracker.dead_letters(queue_id(queue))

    def _sending(self) -> Any:
        return _Sending(self._tracker, self.config.marker_topic)

    def _marker_partition(self, queue: bytes) -> int:  # noqa: ARG002 - there is one
        return 0

    def _consumer(self, queue: bytes) -> QueueConsumer:
        # It plays every part that Kafka's markers and group have.
        member: Any = MemoryMember(queue, self._tracker, self._figures)
        return QueueConsumer(member.buffer, member, member, member, member, forget=self._forget)

    def _end(self) -> None:
        self._tracker.close()


class _Confirmed(NamedTuple):
    """A delivery report, as the client gives it."""

    message_id: MessageId

    def partition(self) -> int:
        return self.message_id.partition

    def offset(self) -> int:
        return self.message_id.offset


class _Sending:
    """Takes the place of the client that sends messages: each is confirmed at once, by the thread that sends it."""

    def __init__(self, tracker: MemoryTracker, marker_topic: str) -> None:
        self._tracker, self._marker_topic = tracker, marker_topic

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes,
        report: Callable[[None, _Confirmed], None],
        *,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int = 0,  # noqa: ARG002 - there is one
    ) -> None:
        if topic == self._marker_topic:
            # Only messages with a delay are sent as markers.
            start = decode(value)
            self._tracker.delay(start)
            report(None, _Confirmed(start.message_id))
            return
        report(None, _Confirmed(self._tracker.add(key, value, tuple(headers or ()))))
