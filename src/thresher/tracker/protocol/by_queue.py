"""The messages in progress of one partition by queue: for metrics, not for decisions."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from thresher.queue.wire.marker import SYNTHETIC
from thresher.tracker.protocol.started import Started


class QueueFigures(NamedTuple):
    """The figures of one queue."""

    in_progress: int
    delayed: int
    due: int
    oldest_seconds: float


class _Queue:
    """One queue that has messages in progress."""

    __slots__ = ("delayed", "id", "started")

    def __init__(self, id_: bytes) -> None:
        self.id = id_
        # In the order of their Starts.
        self.started: dict[Started, None] = {}
        self.delayed = 0


class MessagesByQueue:
    """The messages in progress by queue. For one thread."""

    def __init__(self) -> None:
        self._queues: dict[bytes, _Queue] = {}

    def add(self, message: Started) -> None:
        """Add a message. To save memory, all messages of a queue share one object for the queue's id."""
        queue = self._queues.get(message.queue)
        if queue is None:
            queue = self._queues[message.queue] = _Queue(message.queue)
        message.queue = queue.id
        queue.started[message] = None
        queue.delayed += message.id[0] == SYNTHETIC

    def remove(self, message: Started) -> None:
        """Remove a message that was added."""
        queue = self._queues[message.queue]
        del queue.started[message]
        queue.delayed -= message.id[0] == SYNTHETIC
        if not queue.started:
            del self._queues[queue.id]

    def figures(self, due: Counter[bytes], now_ms: int) -> Iterator[tuple[bytes, QueueFigures]]:
        """Yield the figures of each queue with messages in progress.

        `due` counts the messages whose deadline has passed.
        """
        for queue in self._queues.values():
            oldest = next(iter(queue.started))
            yield (
                queue.id,
                QueueFigures(
                    in_progress=len(queue.started),
                    delayed=queue.delayed,
                    due=due[queue.id],
                    oldest_seconds=max(0, now_ms - oldest.started_ms) / 1000,
                ),
            )


def together(some: Iterable[QueueFigures]) -> QueueFigures:
    """Return the combined figures of several queues."""
    in_progress = delayed = due = 0
    oldest = 0.0
    for each in some:
        in_progress += each.in_progress
        delayed += each.delayed
        due += each.due
        oldest = max(oldest, each.oldest_seconds)
    return QueueFigures(in_progress, delayed, due, oldest)
