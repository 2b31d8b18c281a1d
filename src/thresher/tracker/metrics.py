"""The metrics of a tracker beside those of every service, and how they are read from what the driver knows."""

import json
from collections.abc import Iterator
from functools import partial

from thresher.observe.metric import Family, MetricKind, Reading
from thresher.observe.tally import Number
from thresher.service.metrics import family
from thresher.service.report import Moment
from thresher.service.wording import Wording
from thresher.tracker.meter import BETWEEN, COUNTS_BY_QUEUE, MOST_QUEUES, OTHER, QUEUES
from thresher.tracker.protocol.by_queue import QueueFigures, together

# The words for a tracker in its metrics, on its pages and in its log.
WORDING = Wording(label="tracker", verb="track", doing="tracking", done="started", held="held")
# The errors that shards and take-overs meet most, beside those of every service.
ERROR_KINDS = ("broker_lost", "producer_problem", "commit_unknown")

_counter = partial(family, WORDING.label, MetricKind.COUNTER)
_gauge = partial(family, WORDING.label, MetricKind.GAUGE)

DEAD_KINDS = ("rejected", "max_deliveries", "ttl", "refused")
# Counted by shards, under these names.
_BY_SHARD: dict[str, Family] = {
    "started": _counter("tracked_starts", "Starts of messages that were read.", "shard"),
    "ended": _counter("tracked_ends", "Ends of messages that were in progress.", "shard"),
    "redelivered": _counter("redelivered_messages", "Messages that went back to their queue.", "shard"),
    "rewritten": _counter("rewritten_starts", "Starts that were written anew, so that older markers can go.", "shard"),
    "malformed": _counter("malformed_markers", "Records of the marker topic that are no markers.", "shard"),
    "unknown_ends": _counter("unknown_ends", "Ends of messages that were not in progress.", "shard"),
    "unknown_keep_alives": _counter("unknown_keep_alives", "KeepAlives of messages not in progress.", "shard"),
    "undone": _counter("undone_transactions", "Transactions that took no effect, and were tried again.", "shard"),
    "void_copies": _counter("void_copies", "Starts written anew that came too late to count.", "shard"),
    "displaced": _counter(
        "displaced_messages", "Messages whose id another one came to have: the message topic was made anew.", "shard"
    ),
}
_DEAD = _counter("dead_messages", "Messages that became dead letters, by reason.", "shard", "kind")
_GAUGES: dict[str, Family] = {
    "in_progress": _gauge("in_progress_messages", "Messages that are started and not ended.", "shard"),
    "delayed": _gauge("delayed_messages", "Messages that were sent with a delay, and wait.", "shard"),
    "oldest_seconds": _gauge("oldest_in_progress_seconds", "Time since the oldest of them was started.", "shard"),
    "due": _gauge("due_messages", "Messages that are being redelivered: their deadline has passed.", "shard"),
    "marker_lag": _gauge("marker_lag", "Offsets of the markers that were not read yet.", "shard"),
    "clock_seconds": _gauge("marker_clock_seconds", "The time by which deadlines count, since 1970.", "shard"),
}
# The same by queue, for a bounded number of queues; the others together.
_BY_QUEUE: dict[str, Family] = {
    "in_progress": _gauge("in_progress_messages_by_queue", "Messages that are started and not ended.", "queue"),
    "delayed": _gauge("delayed_messages_by_queue", "Messages that were sent with a delay, and wait.", "queue"),
    "due": _gauge("due_messages_by_queue", "Messages that are being redelivered.", "queue"),
    "oldest_seconds": _gauge(
        "oldest_in_progress_seconds_by_queue", "Time since the oldest message in progress was started.", "queue"
    ),
    "redelivered": _counter("redelivered_messages_by_queue", "Messages that went back to their queue.", "queue"),
    "dead": _counter("dead_messages_by_queue", "Messages that became dead letters.", "queue"),
}

OWN_FAMILIES: tuple[Family, ...] = (
    *_BY_SHARD.values(),
    _DEAD,
    *_GAUGES.values(),
    *_BY_QUEUE.values(),
)


def readings(moment: Moment) -> Iterator[Reading]:
    """Yield what a tracker adds to its service's metrics. An unknown figure is left out, rather than shown as 0."""

    def reading(of: Family, value: float, *labels: str) -> Reading:
        return Reading(family=of, labels=(moment.name, *labels), value=value)

    for shard, counts in sorted(moment.counts.items()):
        for name, of in _BY_SHARD.items():
            yield reading(of, counts.get(name, 0), str(shard))
        for kind in DEAD_KINDS:
            yield reading(_DEAD, counts.get(f"dead.{kind}", 0), str(shard), kind)
    for each in moment.shards:
        for name, of in _GAUGES.items():
            if name in each.gauges:
                yield reading(of, each.gauges[name], str(each.shard))
    for queue, figures in by_queue(moment).items():
        for name, value in figures.items():
            yield reading(_BY_QUEUE[name], value, queue)


def by_queue(moment: Moment) -> dict[str, dict[str, Number]]:
    """Return the figures of the queues with most messages in progress, and of those of which most was counted first.

    The others are told together.
    """
    in_progress: dict[str, list[QueueFigures]] = {}
    for queue, figures in _in_progress(moment):
        in_progress.setdefault(queue, []).append(figures)
    found: dict[str, dict[str, Number]] = {queue: together(each)._asdict() for queue, each in in_progress.items()}
    for queue, name, count in _counted(moment):
        counts = found.setdefault(queue, {})
        counts[name] = counts.get(name, 0) + count
    return found


def _in_progress(moment: Moment) -> Iterator[tuple[str, QueueFigures]]:
    told = [json.loads(text) for shard in moment.shards for text in shard.notes.get(QUEUES, ())]
    # Each shard has named its share; there may have been more shards before.
    told.sort(key=lambda each: (each["queue"] == OTHER, -each["in_progress"]))
    for place, each in enumerate(told):
        queue = each.pop("queue")
        yield (queue if place < MOST_QUEUES else OTHER), QueueFigures(**each)


def _counted(moment: Moment) -> Iterator[tuple[str, str, Number]]:
    named: set[str] = set()
    for counts in moment.counts.values():
        for counted, count in counts.items():
            name, between, queue = counted.partition(BETWEEN)
            if not between or name not in COUNTS_BY_QUEUE:
                continue
            if len(named) < MOST_QUEUES:
                named.add(queue)
            yield (queue if queue in named else OTHER), name, count
