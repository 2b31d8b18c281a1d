"""Reports a shard's figures to the driver: its counters, and the messages in progress in its partitions."""

import heapq
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from thresher.observe.figure_sink import Number
from thresher.tracker.protocol.by_queue import QueueFigures, together
from thresher.tracker.protocol.tracking import Tracking

_TELL_SECONDS, _TIME_SHARE = 0.5, 20
# How many queues are reported by name, over all shards; the others are reported together.
MOST_QUEUES = 50
OTHER = "other"
# The figures by queue: gauges in a note, and counters under `<name>/<queue>`.
QUEUES = "queues"
COUNTS_BY_QUEUE = ("redelivered", "dead")
BETWEEN = "/"
# The note with the last records that are not markers.
MALFORMED = "malformed"
_MOST_MALFORMED = 10
# How many characters of a queue's id are shown.
_LONGEST_ID = 100


class MeterSink(Protocol):
    """The receiver of the figures: a shard."""

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: Number) -> None:
        """Set a gauge."""

    def note(self, name: str, tell: Callable[[], list[str]]) -> None:
        """Report the function's result with each heartbeat."""

    def event(self, name: str, **fields: object) -> None:
        """Report an event."""


class Meter:
    """The figures of one attempt at one shard. The task's thread calls `tell`; another thread reads the notes."""

    def __init__(self, sink: MeterSink, shards: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """The limit of queues reported by name is divided among `shards`."""
        self._sink, self._monotonic = sink, monotonic
        self._most_named = max(1, MOST_QUEUES // shards)
        self._due = self._queues_due = float("-inf")
        self._counted: dict[int, Counter[str]] = {}
        self._tracking = False
        self._queues: list[str] = []
        # A queue that has its own counter keeps it, because a counter never goes down.
        self._named: set[str] = set()
        self._malformed: deque[str] = deque(maxlen=_MOST_MALFORMED)
        sink.note(QUEUES, lambda: self._queues)
        sink.note(MALFORMED, lambda: list(self._malformed.copy()))

    def report(self, partitions: Mapping[int, Tracking]) -> None:
        """Report the state of the partitions, if a report is due."""
        now = self._monotonic()
        decides = all(each.decides for each in partitions.values())
        if decides and not self._tracking:
            self._tracking = True
            self._sink.gauge("tracking", 1)
            self._sink.event("tracking", in_progress=sum(len(each.messages) for each in partitions.values()))
            self._due = now
        if now < self._due:
            return
        self._due = now + _TELL_SECONDS
        for number, tracking in partitions.items():
            self._tell_counts(number, tracking)
            self._tell_malformed(number, tracking)
        due = {number: each.messages.count_due(each.clock.now_ms) for number, each in partitions.items()}
        for name, value in _gauges(partitions, sum(each.total() for each in due.values())).items():
            self._sink.gauge(name, value)
        if now >= self._queues_due:
            self._queues = _by_queue(partitions, due, self._most_named)
            # There may be as many queues as messages, so only one part in `_TIME_SHARE` of the time is spent on this.
            took = self._monotonic() - now
            self._queues_due = now + max(_TELL_SECONDS, _TIME_SHARE * took)

    def _tell_counts(self, number: int, tracking: Tracking) -> None:
        before = self._counted.get(number, Counter())
        counted = tracking.figures.counts - before
        for name, amount in counted.items():
            self._sink.count(name, amount)
        if dead := sum(amount for name, amount in counted.items() if name.startswith("dead.")):
            self._sink.event("dead letters", messages=dead)
        self._counted[number] = tracking.figures.counts.copy()
        for (kind, queue), amount in tracking.figures.by_queue.items():
            shown = _shown(queue)
            if shown not in self._named:
                if len(self._named) < self._most_named:
                    self._named.add(shown)
                else:
                    shown = OTHER
            self._sink.count(f"{kind}{BETWEEN}{shown}", amount)
        tracking.figures.by_queue.clear()

    def _tell_malformed(self, number: int, tracking: Tracking) -> None:
        if not tracking.figures.malformed:
            return
        offset, why = tracking.figures.malformed[-1]
        self._malformed += [f"{number}-{offset}: {why}" for offset, why in tracking.figures.malformed]
        # One log event at a time is enough: the counter has the total.
        self._sink.event("malformed marker", partition=number, offset=offset, why=why)
        tracking.figures.malformed.clear()


def _gauges(partitions: Mapping[int, Tracking], due: int) -> dict[str, Number]:
    trackings = partitions.values()
    oldest = [each.oldest_seconds for each in trackings]
    return {
        "in_progress": sum(len(each.messages) for each in trackings),
        "delayed": sum(each.messages.delayed for each in trackings),
        "due": due,
        "oldest_seconds": max(oldest, default=0.0),
        "marker_lag": sum(each.lag for each in trackings),
        "clock_seconds": max((each.clock.now_ms / 1000 for each in trackings), default=0.0),
    }


def _by_queue(partitions: Mapping[int, Tracking], due: Mapping[int, Counter[bytes]], most: int) -> list[str]:
    """Return a text for each of the `most` queues with most messages in progress, and one for the rest."""

    def figures() -> Iterator[tuple[bytes, int, QueueFigures]]:
        # A queue's markers are in one partition, except those from before partitions were added.
        for number, tracking in partitions.items():
            for queue, each in tracking.messages.by_queue.figures(due[number], tracking.clock.now_ms):
                yield queue, number, each

    named = heapq.nlargest(most, figures(), key=lambda found: found[2].in_progress)
    lines = [json.dumps({"queue": _shown(queue), **each._asdict()}) for queue, _, each in named]
    if len(named) == most:
        known = {(queue, number) for queue, number, _ in named}
        rest = together(each for queue, number, each in figures() if (queue, number) not in known)
        lines.append(json.dumps({"queue": OTHER, **rest._asdict()}))
    return lines


def _shown(queue: bytes) -> str:
    return queue.decode(errors="replace")[:_LONGEST_ID]
