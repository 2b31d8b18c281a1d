"""The metrics that a capture adds to those of every service, and their values from the driver's state.

The configuration names the captured topics, so the number of values of the label `topic` is bounded.
"""

from collections.abc import Iterator
from functools import partial

from thresher.capture.record import KINDS
from thresher.observe.figure_sink import Number
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.service.metrics import family
from thresher.service.report import ServiceSnapshot
from thresher.service.wording import Wording

# Separates the name of a counter or gauge from its topic or kind.
BETWEEN = "/"
# The step in which a user's handler runs.
HANDLING = "handle"
# The words for a capture in its metrics, on its pages and in its log.
WORDING = Wording(
    label="capture", verb="capture", doing="capturing", done="captured", own_steps=frozenset({HANDLING})
)  # fmt: skip
# The most frequent errors of shards and take-overs, in addition to those of every service.
ERROR_KINDS = ("broker_lost", "database_lost", "position_lost", "capture_refused", "records_keep_failing")

_counter = partial(family, WORDING.label, MetricKind.COUNTER)
_gauge = partial(family, WORDING.label, MetricKind.GAUGE)

_CAPTURED = _counter("captured_records", "Records that were applied, or moved to the dead table.", "topic")
_DEAD = _counter("dead_records", "Records that could not be applied.", "topic")
_DEAD_KINDS = _counter("dead_records_by_kind", "Records that could not be applied, by reason.", "kind")
_STARTED_OVER = _counter(
    "started_over", "Times that reading went back to the stored offset, since another process captures too.", "shard"
)
_LAG = _gauge("capture_lag", "Offsets of the topic that were not applied yet.", "topic")

OWN_FAMILIES: tuple[Family, ...] = (_CAPTURED, _DEAD, _DEAD_KINDS, _STARTED_OVER, _LAG)


def readings(snapshot: ServiceSnapshot, topics: tuple[str, ...]) -> Iterator[Reading]:
    """Yield a capture's own metrics. An unknown figure is left out, rather than shown as 0."""

    def reading(of: Family, value: float, *labels: str) -> Reading:
        return Reading(family=of, labels=(snapshot.name, *labels), value=value)

    for topic in topics:
        yield reading(_CAPTURED, counted(snapshot, "captured", topic), topic)
        yield reading(_DEAD, counted(snapshot, "dead", topic), topic)
        if (lag := lag_of(snapshot, topic)) is not None:
            yield reading(_LAG, lag, topic)
    for kind in KINDS:
        yield reading(_DEAD_KINDS, counted(snapshot, "dead_kind", kind), kind)
    for shard, counts in sorted(snapshot.counts.items()):
        yield reading(_STARTED_OVER, counts.get("started_over", 0), str(shard))


def counted(snapshot: ServiceSnapshot, name: str, of: str) -> Number:
    """Return a counter of one topic or kind, summed over all shards."""
    return sum(counts.get(f"{name}{BETWEEN}{of}", 0) for counts in snapshot.counts.values())


def lag_of(snapshot: ServiceSnapshot, topic: str) -> Number | None:
    """Return the lag of a topic, summed over all shards; None if no shard has reported it."""
    found = [each.gauges[name] for each in snapshot.shards if (name := f"lag{BETWEEN}{topic}") in each.gauges]
    return sum(found) if found else None
