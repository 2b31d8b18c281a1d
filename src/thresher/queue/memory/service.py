"""Queues in the memory of one process, for the tests of applications: no broker, no topics, no tracker.

`MemoryQueueService` makes the same queues, producers and consumers as `QueueService`, and refuses the same input. It
replaces the broker and the tracker:

1. Each message goes to one consumer of its queue. A consumer starts a few messages ahead of its application, and never
   has more than `max-in-progress` unsettled messages.
2. After its delay, a nacked message goes to the end of its queue, and its delivery count is one higher. A message sent
   with a delay enters its queue after that delay.
3. A closed consumer gives back its unsettled messages at once. Messages that its application has not received keep
   their delivery count.
4. Each delivery has its own id. The origin id, which `send` returned, stays the same.
5. A message that was rejected, or has reached its limits, is in its queue's `dead_letters`.

The consumers of this process cannot crash, so no message is redelivered by a time-out: `extend` does nothing.
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

# Placeholders for the required keys: this service has no servers.
_PLACEHOLDERS = {"bootstrap-servers": "memory:9092", "message-topic": "messages", "marker-topic": "markers"}


class MemoryQueueService(BaseQueueService):
    """The queues of one test. After `close`, dead letters can still be read."""

    def __init__(
        self,
        config: QueueConfig | Mapping[str, Any] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`config` may be the application's; servers and topics may be left out. Raises `ConfigurationInvalid`.

        Delays are measured by `monotonic`. Each `receive` reads it, so a test can pass a clock of its own and move it
        forward.
        """
        if not isinstance(config, QueueConfig):
            config = {**_PLACEHOLDERS, **{str(name).replace("_", "-"): value for name, value in (config or {}).items()}}
        super().__init__(configured(config))
        self._tracker = MemoryTracker(self.config, monotonic, wall_clock)

    def dead_letters(self, queue: str | bytes) -> tuple[DeadLetter, ...]:
        """Return a queue's messages that were rejected or have reached their limits, earliest first."""
        return self._tracker.dead_letters(queue_id(queue))

    def _sending(self) -> Any:
        return _Sending(self._tracker, self.config.marker_topic)

    def _marker_partition(self, queue: bytes) -> int:  # noqa: ARG002 - there is one
        return 0

    def _consumer(self, queue: bytes) -> QueueConsumer:
        # One object stands in for the group member, the markers and the KeepAlive thread.
        member: Any = MemoryMember(queue, self._tracker, self._figures)
        return QueueConsumer(member.buffer, member, member, member, member, forget=self._forget)

    def _end(self) -> None:
        self._tracker.close()


class _Confirmed(NamedTuple):
    """A delivery report, as the Kafka client passes it."""

    message_id: MessageId

    def partition(self) -> int:
        return self.message_id.partition

    def offset(self) -> int:
        return self.message_id.offset


class _Sending:
    """Replaces the Kafka client that sends messages: each is confirmed at once, in the thread that sends it."""

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
