"""Tells the driver how a shard stands: what it has counted, and what its partitions have in progress."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from thresher.observe.tally import Number
from thresher.tracker.protocol.tracking import Tracking

_TELL_SECONDS = 0.5
# Queues that are told by name; the others are told together.
MOST_QUEUES = 50
QUEUES = "queues"
OTHER = "other"


class Told(Protocol):
    """Where figures go: a shard."""

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a figure that only grows."""

    def gauge(self, name: str, value: Number) -> None:
        """Set a figure that goes up and down."""

    def note(self, name: str, tell: Callable[[], list[str]]) -> None:
        """Have this told with each beat."""

    def event(self, name: str, **fields: object) -> None:
        """Tell that something happened."""


class Meter:
    """The figures of one attempt at one shard. `tell` is the task's own; notes are asked for by another thread."""

    def __init__(self, told: Told, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._told, self._monotonic = told, monotonic
        self._due = float("-inf")
        self._counted: dict[int, Counter[str]] = {}
        self._tracking = False
        self._queues: list[str] = []
        told.note(QUEUES, lambda: self._queues)

    def tell(self, partitions: Mapping[int, Tracking]) -> None:
        """Tell how the partitions stand, if it is time."""
        now = self._monotonic()
        decides = all(each.decides for each in partitions.values())
        if decides and not self._tracking:
            self._tracking = True
            self._told.gauge("tracking", 1)
            self._told.event("tracking", in_progress=sum(len(each.messages) for each in partitions.values()))
            self._due = now
        if now < self._due:
            return
        self._due = now + _TELL_SECONDS
        for number, tracking in partitions.items():
            before = self._counted.get(number, Counter())
            for name, amount in (tracking.counts - before).items():
                self._told.count(name, amount)
            self._counted[number] = tracking.counts.copy()
        for name, value in _gauges(partitions).items():
            self._told.gauge(name, value)
        self._queues = _by_queue(partitions)


def _gauges(partitions: Mapping[int, Tracking]) -> dict[str, Number]:
    trackings = partitions.values()
    oldest = [each.oldest_seconds for each in trackings]
    return {
        "in_progress": sum(len(each.messages) for each in trackings),
        "delayed": sum(each.messages.delayed for each in trackings),
        "due": sum(each.messages.count_due(each.clock.now_ms) for each in trackings),
        "oldest_seconds": max(oldest, default=0.0),
        "marker_lag": sum(each.lag for each in trackings),
        "clock_seconds": max((each.clock.now_ms / 1000 for each in trackings), default=0.0),
    }


def _by_queue(partitions: Mapping[int, Tracking]) -> list[str]:
    """Return a text for each queue, `<number> <id>`, most first; the rest together."""
    together: Counter[bytes] = Counter()
    for each in partitions.values():
        together.update(each.messages.by_queue)
    named = together.most_common(MOST_QUEUES)
    rest = together.total() - sum(count for _, count in named)
    told = [f"{count} {queue.decode(errors='replace')}" for queue, count in named]
    return [*told, f"{rest} {OTHER}"] if rest else told
