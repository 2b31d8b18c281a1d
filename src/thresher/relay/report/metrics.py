"""The metrics that a relay adds to those of every service, and how their values are taken from the driver's figures."""

from collections.abc import Iterator
from functools import partial

from thresher.core.topic_name import is_topic
from thresher.delivery.fate import Kind as DeadKind
from thresher.delivery.leader.server_probes import SERVERS
from thresher.delivery.shard.meter import BATCH, END_TO_END, PUBLISH, SETTLE
from thresher.delivery.transforms import STEP as TRANSFORM
from thresher.observe.figure_sink import summed
from thresher.observe.histogram import Histogram, Scale
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.relay.leader.background_work import BackgroundWork
from thresher.relay.report.backlog import Backlog
from thresher.service.metrics import ServiceMetrics, family
from thresher.service.report import ServiceSnapshot
from thresher.service.wording import Wording

# The words for a relay in its metrics, on its pages and in its log.
WORDING = Wording(
    label="relay", verb="relay", doing="relaying", done="relayed", held="held_topics", own_steps=frozenset({TRANSFORM})
)
# The most frequent errors of shards and take-overs, in addition to those of every service.
ERROR_KINDS = ("database_lost", "broker_lost", "producer_problem", "commit_unknown")

_counter = partial(family, WORDING.label, MetricKind.COUNTER)
_gauge = partial(family, WORDING.label, MetricKind.GAUGE)
_histogram = partial(family, WORDING.label, MetricKind.HISTOGRAM)

# Counters of each shard, by the name under which the shard counts.
_BY_SHARD: dict[str, Family] = {
    "relayed": _counter("relayed_records", "Rows whose records were committed to Kafka.", "shard"),
    "relayed_bytes": _counter(
        "relayed_bytes", "Bytes of key, value and headers of committed records, before compression.", "shard"
    ),
    "filtered": _counter("filtered_records", "Rows that a transform left out: settled, and not sent.", "shard"),
    "recovered": _counter(
        "recovered_records", "Rows settled by recovery: an earlier attempt sent them and did not settle them.", "shard"
    ),
    "strangers": _counter(
        "foreign_progress_records",
        "Records on the progress topic that this relay did not write, and that recovery ignored.",
        "shard",
    ),
    "transactions": _counter("transactions", "Kafka transactions committed.", "shard"),
}
# Counters of each shard, with topic locks only.
_LOCK_COUNTS: dict[str, Family] = {
    "turns": _counter("topic_turns", "Topic locks: turns at a topic's lock.", "shard"),
    "errored_turns": _counter("topic_errors", "Topic locks: turns that ended with an error.", "shard"),
    "locks_lost": _counter(
        "topic_locks_lost", "Topic locks: turns during which another process took the lock.", "shard"
    ),
}
_DEAD = _counter("dead_records", "Rows that can never be sent and were set aside, by kind.", "shard", "kind")
_HISTOGRAMS: dict[Scale, Family] = {
    BATCH: _histogram("batch_records", "Rows in a Kafka transaction."),
    PUBLISH: _histogram(
        "publish_seconds", "From the opening of a Kafka transaction to the answer to its commit, which waits for the "
        "settling of the previous one.",
    ),
    SETTLE: _histogram("settle_seconds", "Settling the rows of one Kafka transaction in the database."),
    END_TO_END: _histogram(
        "end_to_end_seconds", "From a row's create time to the commit of its record, by the database's clock. At most "
        "16 rows of a transaction are measured, each standing for its neighbours.",
    ),
}  # fmt: skip
_IN_FLIGHT_ROWS = _gauge("in_flight_records", "Rows that were sent and are not settled yet.", "shard")
_IN_FLIGHT_KEYS = _gauge("in_flight_keys", "Keys with a record in flight.", "shard")
_PENDING = _gauge("pending_records", "Rows that wait; an estimate while thresher_pending_exact is 0.", "shard")
_EXACT = _gauge("pending_exact", "1 if the pending rows were counted, 0 if there are too many to count.")
_OLDEST = _gauge("oldest_pending_age_seconds", "Age of the oldest row that waits, 0 if none does.")
_DEAD_ROWS = _gauge("dead_rows", "Rows set aside that nobody has replayed or dropped yet.")
_BLOCKING = _gauge("blocking_rows", "Rows set aside that keep the later rows of their key waiting.")
_BY_TOPIC: dict[str, Family] = {
    "pending": _gauge(
        "topic_pending_records",
        "Topic locks: rows of a topic that wait, counted up to 10,001. 50 topics at most.",
        "topic",
    ),
    "oldest_seconds": _gauge(
        "topic_oldest_age_seconds", "Topic locks: age of the oldest row of a topic that waits, 0 if none does.", "topic"
    ),
    "locked": _gauge("topic_locks_held", "Topic locks: locks of a topic that a process holds now.", "topic"),
    "errored": _gauge("topic_locks_errored", "Topic locks: locks of a topic in cool-down after an error.", "topic"),
}
_HELD = _gauge(
    "held_topics",
    "Topics with rows that wait: missing, forbidden or unhealthy topics and partitions, or a failing transform.",
)
_ARCHIVED = _counter("archived_records", "Rows that were moved to the archive.")
_ARCHIVE_FAILURES = _counter("archive_failures", "Runs of the archive that failed.")
_ARCHIVE_AGE = _gauge(
    "archive_success_age_seconds", "Seconds since a run of the archive last succeeded, or since the relay leads."
)
# Shown by relays that archive.
ARCHIVE_FAMILIES: tuple[Family, ...] = (_ARCHIVED, _ARCHIVE_FAILURES, _ARCHIVE_AGE)
# Shown by relays that lock topics.
TOPIC_LOCK_FAMILIES: tuple[Family, ...] = (*_LOCK_COUNTS.values(), *_BY_TOPIC.values())
OWN_FAMILIES: tuple[Family, ...] = (
    *_BY_SHARD.values(), _DEAD, *_HISTOGRAMS.values(), _IN_FLIGHT_ROWS, _IN_FLIGHT_KEYS, _PENDING, _EXACT, _OLDEST,
    _DEAD_ROWS, _BLOCKING, _HELD, *TOPIC_LOCK_FAMILIES, *ARCHIVE_FAMILIES,
)  # fmt: skip
# All metrics of a relay's process.
FAMILIES: tuple[Family, ...] = (*ServiceMetrics(WORDING, servers=SERVERS).families, *OWN_FAMILIES)


def readings(
    snapshot: ServiceSnapshot, backlog: Backlog | None, background_work: BackgroundWork | None = None
) -> Iterator[Reading]:
    """Yield the values of the relay's own metrics. An unknown value is left out, not shown as 0."""
    relay = snapshot.name

    def reading(of: Family, value: float, *labels: str) -> Reading:
        return Reading(family=of, labels=(relay, *labels), value=value)

    for shard, counts in sorted(snapshot.counts.items()):
        for name, of in (_BY_SHARD | _LOCK_COUNTS).items():
            yield reading(of, counts.get(name, 0), str(shard))
        for kind in DeadKind:
            yield reading(_DEAD, counts.get(f"dead.{kind}", 0), str(shard), str(kind))
    together = summed(snapshot.counts.values())
    for scale, of in _HISTOGRAMS.items():
        yield Reading(family=of, labels=(relay,), value=Histogram.read(scale, together))
    # Alarms that are not about a topic have names that no topic can have.
    yield reading(_HELD, sum(map(is_topic, snapshot.alarms)))
    for name, of in (("in_flight_rows", _IN_FLIGHT_ROWS), ("in_flight_keys", _IN_FLIGHT_KEYS)):
        for each in (shard for shard in snapshot.shards if name in shard.gauges):
            yield reading(of, each.gauges[name], str(each.shard))
    if backlog is not None:
        yield from _of_backlog(relay, backlog)
    if background_work is not None:
        yield from _of_archive(relay, background_work)


def _of_backlog(relay: str, backlog: Backlog) -> Iterator[Reading]:
    labels = (relay,)
    for shard, pending in enumerate(backlog.by_shard):
        yield Reading(family=_PENDING, labels=(*labels, str(shard)), value=pending)
    yield Reading(family=_EXACT, labels=labels, value=backlog.exact)
    yield Reading(family=_OLDEST, labels=labels, value=backlog.oldest_seconds or 0.0)
    yield Reading(family=_DEAD_ROWS, labels=labels, value=backlog.dead)
    yield Reading(family=_BLOCKING, labels=labels, value=backlog.blocking)
    for topic in backlog.topics:
        for name, of in _BY_TOPIC.items():
            yield Reading(family=of, labels=(*labels, topic.topic), value=getattr(topic, name) or 0)


def _of_archive(relay: str, background_work: BackgroundWork) -> Iterator[Reading]:
    labels = (relay,)
    yield Reading(family=_ARCHIVED, labels=labels, value=background_work.rows)
    yield Reading(family=_ARCHIVE_FAILURES, labels=labels, value=background_work.failures)
    if (age := background_work.success_age_seconds) is not None:
        yield Reading(family=_ARCHIVE_AGE, labels=labels, value=age)
