"""The metrics that a tail adds to those of every service, and their values from the driver's state."""

from collections.abc import Iterator
from functools import partial

from thresher.core.topic_name import is_topic
from thresher.delivery.fate import Kind as DeadKind
from thresher.delivery.shard.meter import BATCH, END_TO_END, PUBLISH, SETTLE
from thresher.delivery.transforms import STEP as TRANSFORM
from thresher.observe.figure_sink import summed
from thresher.observe.histogram import Histogram, Scale
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.service.metrics import family
from thresher.service.report import ServiceSnapshot
from thresher.service.wording import Wording
from thresher.tail.leader.figures import LogFigures

# The words for a tail in its metrics, on its pages and in its log. Counters and events have the names of a relay's.
WORDING = Wording(
    label="tail", verb="tail", doing="relaying", done="relayed", held="held_topics", own_steps=frozenset({TRANSFORM})
)
# The most frequent errors of shards and take-overs, in addition to those of every service.
ERROR_KINDS = ("database_lost", "broker_lost", "producer_problem", "commit_unknown", "log_lost", "log_unreadable")

_counter = partial(family, WORDING.label, MetricKind.COUNTER)
_gauge = partial(family, WORDING.label, MetricKind.GAUGE)
_histogram = partial(family, WORDING.label, MetricKind.HISTOGRAM)

# The shard's counters, by name.
_BY_SHARD: dict[str, Family] = {
    "relayed": _counter("tailed_records", "Changes of the WAL whose records were committed to Kafka.", "shard"),
    "relayed_bytes": _counter(
        "tailed_bytes", "Bytes of key, value and headers of committed records, before compression.", "shard"
    ),
    "filtered": _counter("tail_filtered_records", "Changes that a transform filtered out.", "shard"),
    "recovered": _counter("tail_recovered_records", "Dead rows that recovery wrote to the dead table again.", "shard"),
    "strangers": _counter(
        "tail_foreign_progress_records", "Records on the progress topic that others wrote, and that were skipped.",
        "shard",
    ),
    "refused_messages": _counter(
        "tail_refused_messages", "Messages in the WAL that were not published: the outbox's function did not write "
        "them.", "shard",
    ),
    "transactions": _counter("tail_transactions", "Kafka transactions committed.", "shard"),
}  # fmt: skip
_DEAD = _counter(
    "tail_dead_records", "Changes that can never be sent and were moved to the dead table, by kind.", "shard", "kind"
)
_HISTOGRAMS: dict[Scale, Family] = {
    BATCH: _histogram("tail_batch_records", "Rows in a Kafka transaction."),
    PUBLISH: _histogram("tail_publish_seconds", "From the opening of a Kafka transaction to the answer to its commit."),
    SETTLE: _histogram("tail_settle_seconds", "Settling of a transaction: dead rows written, slot confirmed."),
    END_TO_END: _histogram(
        "tail_end_to_end_seconds", "From a row's create time to the commit of its record, by the database's clock. "
        "Sampled: at most 16 rows of a transaction, each standing for its neighbours.",
    ),
}  # fmt: skip
_GAUGES: dict[str, Family] = {
    "buffered_rows": _gauge("tail_buffered_records", "Changes that were read and are not published yet.", "shard"),
    "buffered_bytes": _gauge("tail_buffered_bytes", "About how many bytes the buffered changes take.", "shard"),
    "lag_seconds": _gauge(
        "tail_lag_seconds", "Time since the commit of the oldest buffered change, 0 without any.", "shard"
    ),
    "in_flight_rows": _gauge("tail_in_flight_records", "Changes that were sent and are not settled yet.", "shard"),
}
_RETAINED = _gauge("tail_retained_bytes", "Bytes of WAL that the server keeps for the slot.")
_DEAD_ROWS = _gauge("tail_dead_rows", "Rows in the dead table: not replayed and not dropped yet.")
_TRIMMED = _counter("tail_trimmed_records", "Published rows that were deleted from the table after keep_seconds.")
_HELD = _gauge(
    "tail_held_topics",
    "Topics whose rows wait, since the topic is missing, forbidden or unhealthy, or a transform fails.",
)
OWN_FAMILIES: tuple[Family, ...] = (
    *_BY_SHARD.values(), _DEAD, *_HISTOGRAMS.values(), *_GAUGES.values(), _RETAINED, _DEAD_ROWS, _TRIMMED, _HELD
)  # fmt: skip


def readings(snapshot: ServiceSnapshot, figures: LogFigures | None) -> Iterator[Reading]:
    """Yield a tail's own metrics. An unknown figure is left out, rather than shown as 0."""
    tail = snapshot.name
    for shard, counts in sorted(snapshot.counts.items()):
        for name, of in _BY_SHARD.items():
            yield Reading(family=of, labels=(tail, str(shard)), value=counts.get(name, 0))
        for kind in DeadKind:
            yield Reading(family=_DEAD, labels=(tail, str(shard), str(kind)), value=counts.get(f"dead.{kind}", 0))
    together = summed(snapshot.counts.values())
    for scale, of in _HISTOGRAMS.items():
        yield Reading(family=of, labels=(tail,), value=Histogram.read(scale, together))
    for each in snapshot.shards:
        for name in _GAUGES.keys() & each.gauges.keys():
            yield Reading(family=_GAUGES[name], labels=(tail, str(each.shard)), value=each.gauges[name])
    # An alarm about a topic has the topic's name; the names of other alarms are not valid for topics.
    yield Reading(family=_HELD, labels=(tail,), value=sum(map(is_topic, snapshot.alarms)))
    yield from _of_log(tail, figures or LogFigures())


def _of_log(tail: str, figures: LogFigures) -> Iterator[Reading]:
    known = ((_RETAINED, figures.retained_bytes), (_DEAD_ROWS, figures.dead_rows), (_TRIMMED, figures.trimmed))
    for of, value in known:
        if value is not None:
            yield Reading(family=of, labels=(tail,), value=value)
