"""The messages in progress of one partition by queue: for figures, not for decisions."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from thresher.queue.wire.marker import SYNTHETIC
from thresher.tracker.protocol.started import Started


class QueueFigures(NamedTuple):
    """How one queue stands."""

    in_progress: int
    delayed: int
    due: int
    oldest_seconds: float


class _Queue:
    """One queue, while it has messages in progress."""

    __slots__ = ("delayed", "id", "started")

    def __init__(self, id_: bytes) -> None:
        self.id = id_
        # In the order in which they were started.
        self.started: dict[Started, None] = {}
        self.delayed = 0


class MessagesByQueue:
    """The messages in progress by queue. For one thread."""

    def __init__(self) -> None:
        self._queues: dict[bytes, _Queue] = {}

    def add(self, message: Started) -> None:
        """Take in a message. From now on its queue's id is one object for all of the queue."""
        queue = self._queues.get(message.queue)
        if queue is None:
            queue = self._queues[message.queue] = _Queue(message.queue)
        message.queue = queue.id
        queue.started[message] = None
        queue.delayed += message.id[0] == SYNTHETIC

    def remove(self, message: Started) -> None:
        """Forget a message that was taken in."""
        queue = self._queues[message.queue]
        del queue.started[message]
        queue.delayed -= message.id[0] == SYNTHETIC
        if not queue.started:
            del self._queues[queue.id]

    def figures(self, due: Counter[bytes], now_ms: int) -> Iterator[tuple[bytes, QueueFigures]]:
        """Yield how each queue stands that has messages in progress; `due` are those whose deadline has passed."""
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
    """Return how some queues stand together."""
    in_progress = delayed = due = 0
    oldest = 0.0
    for each in some:
        in_progress += each.in_progress
        delayed += each.delayed
        due += each.due
        oldest = max(oldest, each.oldest_seconds)
    return QueueFigures(in_progress, delayed, due, oldest)
