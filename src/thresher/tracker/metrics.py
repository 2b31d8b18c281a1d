"""The tracker's own metrics, in addition to those of every service, computed from what the shards have reported."""

import json
from collections.abc import Iterator
from functools import partial

from thresher.observe.figure_sink import Number
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.service.metrics import family
from thresher.service.report import ServiceSnapshot
from thresher.service.wording import Wording
from thresher.tracker.meter import BETWEEN, COUNTS_BY_QUEUE, MOST_QUEUES, OTHER, QUEUES
from thresher.tracker.protocol.by_queue import QueueFigures, together

# The tracker's wording in metrics, pages and logs.
WORDING = Wording(label="tracker", verb="track", doing="tracking", done="started", held="held")
# The most frequent errors of shards and take-overs, in addition to those of every service.
ERROR_KINDS = ("broker_lost", "producer_problem", "commit_unknown")

_counter = partial(family, WORDING.label, MetricKind.COUNTER)
_gauge = partial(family, WORDING.label, MetricKind.GAUGE)

DEAD_KINDS = ("rejected", "max_deliveries", "ttl", "refused")
# By the name that the shards count under.
_BY_SHARD: dict[str, Family] = {
    "started": _counter("tracked_starts", "Starts of messages that were read.", "shard"),
    "ended": _counter("tracked_ends", "Ends of messages that were in progress.", "shard"),
    "redelivered": _counter("redelivered_messages", "Messages returned to their queue.", "shard"),
    "rewritten": _counter("rewritten_starts", "Starts rewritten so that older markers can be removed.", "shard"),
    "malformed": _counter("malformed_markers", "Records of the marker topic that are not markers.", "shard"),
    "unknown_ends": _counter("unknown_ends", "Ends of messages that were not in progress.", "shard"),
    "unknown_keep_alives": _counter("unknown_keep_alives", "KeepAlives of messages not in progress.", "shard"),
    "undone": _counter("undone_transactions", "Transactions that were aborted and retried.", "shard"),
    "void_copies": _counter("void_copies", "Rewritten Starts that were written too late to be valid.", "shard"),
    "displaced": _counter(
        "displaced_messages", "Messages whose id another message has now: the message topic was recreated.", "shard"
    ),
}
_DEAD = _counter("dead_messages", "Messages that became dead letters, by reason.", "shard", "kind")
_GAUGES: dict[str, Family] = {
    "in_progress": _gauge("in_progress_messages", "Messages that are started and not ended.", "shard"),
    "delayed": _gauge("delayed_messages", "Messages sent with a delay that has not passed.", "shard"),
    "oldest_seconds": _gauge(
        "oldest_in_progress_seconds", "Time since the oldest message in progress was started.", "shard"
    ),
    "due": _gauge("due_messages", "Messages whose deadline has passed: they are being redelivered.", "shard"),
    "marker_lag": _gauge("marker_lag", "Offsets of the marker topic that were not read yet.", "shard"),
    "spilled_bytes": _gauge(
        "spilled_bytes", "Size of the temporary file with contents of messages in progress.", "shard"
    ),
    "clock_seconds": _gauge("marker_clock_seconds", "The tracker's clock, in seconds since 1970.", "shard"),
}
# The same by queue, for a limited number of queues; the others are summed up.
_BY_QUEUE: dict[str, Family] = {
    "in_progress": _gauge("in_progress_messages_by_queue", "Messages that are started and not ended.", "queue"),
    "delayed": _gauge("delayed_messages_by_queue", "Messages sent with a delay that has not passed.", "queue"),
    "due": _gauge("due_messages_by_queue", "Messages that are being redelivered.", "queue"),
    "oldest_seconds": _gauge(
        "oldest_in_progress_seconds_by_queue", "Time since the oldest message in progress was started.", "queue"
    ),
    "redelivered": _counter("redelivered_messages_by_queue", "Messages returned to their queue.", "queue"),
    "dead": _counter("dead_messages_by_queue", "Messages that became dead letters.", "queue"),
}

OWN_FAMILIES: tuple[Family, ...] = (
    *_BY_SHARD.values(),
    _DEAD,
    *_GAUGES.values(),
    *_BY_QUEUE.values(),
)


def readings(snapshot: ServiceSnapshot) -> Iterator[Reading]:
    """Yield the tracker's own metrics. An unknown value is omitted rather than shown as 0."""

    def reading(of: Family, value: float, *labels: str) -> Reading:
        return Reading(family=of, labels=(snapshot.name, *labels), value=value)

    for shard, counts in sorted(snapshot.counts.items()):
        for name, of in _BY_SHARD.items():
            yield reading(of, counts.get(name, 0), str(shard))
        for kind in DEAD_KINDS:
            yield reading(_DEAD, counts.get(f"dead.{kind}", 0), str(shard), kind)
    for each in snapshot.shards:
        for name, of in _GAUGES.items():
            if name in each.gauges:
                yield reading(of, each.gauges[name], str(each.shard))
    for queue, figures in by_queue(snapshot).items():
        for name, value in figures.items():
            yield reading(_BY_QUEUE[name], value, queue)


def by_queue(snapshot: ServiceSnapshot) -> dict[str, dict[str, Number]]:
    """Return the figures by queue.

    Named are the queues with most messages in progress, and the first queues with counters. The others are summed up.
    """
    in_progress: dict[str, list[QueueFigures]] = {}
    for queue, figures in _in_progress(snapshot):
        in_progress.setdefault(queue, []).append(figures)
    found: dict[str, dict[str, Number]] = {queue: together(each)._asdict() for queue, each in in_progress.items()}
    for queue, name, count in _counted(snapshot):
        counts = found.setdefault(queue, {})
        counts[name] = counts.get(name, 0) + count
    return found


def _in_progress(snapshot: ServiceSnapshot) -> Iterator[tuple[str, QueueFigures]]:
    told = [json.loads(text) for shard in snapshot.shards for text in shard.notes.get(QUEUES, ())]
    # Each shard names its part of the limit, but there may have been more shards before.
    told.sort(key=lambda each: (each["queue"] == OTHER, -each["in_progress"]))
    for place, each in enumerate(told):
        queue = each.pop("queue")
        yield (queue if place < MOST_QUEUES else OTHER), QueueFigures(**each)


def _counted(snapshot: ServiceSnapshot) -> Iterator[tuple[str, str, Number]]:
    named: set[str] = set()
    for counts in snapshot.counts.values():
        for counted, count in counts.items():
            name, between, queue = counted.partition(BETWEEN)
            if not between or name not in COUNTS_BY_QUEUE:
                continue
            if len(named) < MOST_QUEUES:
                named.add(queue)
            yield (queue if queue in named else OTHER), name, count
