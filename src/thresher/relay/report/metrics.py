"""What a relay measures: its metrics, and how they are read from what the driver knows.

Labels are the relay's name, the shard, and kinds of which there are a few: never a key, a topic or a row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from thresher import __version__
from thresher.delivery.fate import Kind as DeadKind
from thresher.observe.histogram import Histogram, Scale
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.observe.tally import Number, summed
from thresher.relay.report.backlog import Backlog
from thresher.relay.shard.meter import BATCH, END_TO_END, PUBLISH, SETTLE
from thresher.service.health import Role
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.driver.supervision import Phase


def _counter(name: str, help_: str, *labels: str) -> Family:
    return Family(name=f"thresher_{name}_total", kind=MetricKind.COUNTER, help=help_, labels=("relay", *labels))


def _gauge(name: str, help_: str, *labels: str) -> Family:
    return Family(name=f"thresher_{name}", kind=MetricKind.GAUGE, help=help_, labels=("relay", *labels))


def _histogram(name: str, help_: str) -> Family:
    return Family(name=f"thresher_{name}", kind=MetricKind.HISTOGRAM, help=help_, labels=("relay",))


# Counted by shards, under these names.
_BY_SHARD: dict[str, Family] = {
    "relayed": _counter("relayed_records", "Rows whose records were committed to Kafka.", "shard"),
    "relayed_bytes": _counter(
        "relayed_bytes", "Bytes of key, value and headers of committed records, before compression.", "shard"
    ),
    "filtered": _counter("filtered_records", "Rows that a transform left out: settled, and not sent.", "shard"),
    "recovered": _counter(
        "recovered_records", "Rows settled by recovery: sent before, and not settled by whoever sent them.", "shard"
    ),
    "transactions": _counter("transactions", "Kafka transactions committed.", "shard"),
    "restarts": _counter("shard_restarts", "Attempts at a shard after its first.", "shard"),
    "events_dropped": _counter(
        "dropped_events", "Events that shards reported faster than the driver took them.", "shard"
    ),
}
_DEAD = _counter("dead_records", "Rows that can never be sent and were set aside, by kind.", "shard", "kind")
_ERRORS = _counter("errors", "Errors that ended an attempt at a shard, a take-over or a watch, by kind.", "kind")
_FENCES = _counter(
    "fences", "Times that it was stopped for another's sake: by 'term', by the 'broker' or by the 'election'.", "by"
)
_TAKE_OVERS = _counter("takeovers", "Times that this process took over.")
_HISTOGRAMS: dict[Scale, Family] = {
    BATCH: _histogram("batch_records", "Rows in a Kafka transaction."),
    PUBLISH: _histogram(
        "publish_seconds", "From the opening of a Kafka transaction to the answer to its commit, which waits for the "
        "settling of the one before.",
    ),
    SETTLE: _histogram("settle_seconds", "Settling the rows of one Kafka transaction in the database."),
    END_TO_END: _histogram(
        "end_to_end_seconds", "From a row's create time to the commit of its record, by the database's clock. At most "
        "16 rows of a transaction are looked at, each standing for its neighbours.",
    ),
}  # fmt: skip
_LEADER = _gauge("leader", "1 while this process leads the relay.")
_READY = _gauge("ready", "1 while /readyz says so: a leader whose shards relay, or a standby.")
_SHARD_UP = _gauge("shard_up", "1 while the shard relays.", "shard")
_SHARD_MEMORY = _gauge("shard_resident_bytes", "Memory of the shard's process.", "shard")
_IN_FLIGHT_ROWS = _gauge("in_flight_records", "Rows that were sent and are not committed yet.", "shard")
_IN_FLIGHT_KEYS = _gauge("in_flight_keys", "Keys with a record in flight.", "shard")
_PENDING = _gauge("pending_records", "Rows that wait; an estimate while thresher_pending_exact is 0.", "shard")
_EXACT = _gauge("pending_exact", "1 while the pending rows were counted, 0 while there are too many to count.")
_OLDEST = _gauge("oldest_pending_age_seconds", "Age of the oldest row that waits, 0 if none does.")
_DEAD_ROWS = _gauge("dead_rows", "Rows set aside that nobody has replayed or dropped yet.")
_BLOCKING = _gauge("blocking_rows", "Rows set aside that keep the later rows of their key waiting.")
_HELD = _gauge("held_topics", "Topics whose rows wait because the topic is missing or forbidden.")
_DATABASE = _gauge("database_up", "1 if the database answered this scrape; absent where it was not asked.")
_INFO = Family(
    name="thresher_build_info", kind=MetricKind.GAUGE, help="1, with the version.", labels=("relay", "version")
)

# Shown before they happen, so that the first time is seen as an increase.
_NONE_YET: dict[str, Number] = {
    "takeovers": 0,
    **{f"fences.{by}": 0 for by in ("term", "broker", "election")},
    **{
        f"errors.{kind}": 0
        for kind in ("database_lost", "broker_lost", "producer_problem", "commit_unknown", "superseded", "unexpected")
    },
}

FAMILIES: tuple[Family, ...] = (
    *_BY_SHARD.values(), _DEAD, _ERRORS, _FENCES, _TAKE_OVERS, *_HISTOGRAMS.values(), _LEADER, _READY, _SHARD_UP,
    _SHARD_MEMORY, _IN_FLIGHT_ROWS, _IN_FLIGHT_KEYS, _PENDING, _EXACT, _OLDEST, _DEAD_ROWS, _BLOCKING, _HELD, _DATABASE,
    _INFO,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All that is known of a relay at one moment. `asked`: the database was; then no backlog means no answer."""

    relay: str
    role: Role
    ready: bool
    shards: tuple[ShardSnapshot, ...]
    # Over all leaderships: by shard, and the driver's own.
    counts: Mapping[int, Mapping[str, Number]]
    driver: Mapping[str, Number]
    asked: bool
    backlog: Backlog | None
    held_topics: int


def readings(moment: Moment) -> Iterator[Reading]:
    """Yield what every metric is at this moment. What is not known is left out, rather than shown as 0."""
    relay = moment.relay

    def reading(family: Family, value: float, *labels: str) -> Reading:
        return Reading(family=family, labels=(relay, *labels), value=value)

    together = summed([_NONE_YET, moment.driver, *moment.counts.values()])
    for shard, counts in sorted(moment.counts.items()):
        for name, family in _BY_SHARD.items():
            yield reading(family, counts.get(name, 0), str(shard))
        for kind in DeadKind:
            yield reading(_DEAD, counts.get(f"dead.{kind}", 0), str(shard), str(kind))
    for name, value in _split(together, "errors"):
        yield reading(_ERRORS, value, name)
    for name, value in _split(together, "fences"):
        yield reading(_FENCES, value, name)
    yield reading(_TAKE_OVERS, together["takeovers"])
    for scale, family in _HISTOGRAMS.items():
        yield Reading(family=family, labels=(relay,), value=Histogram.read(scale, together))
    yield reading(_LEADER, moment.role is Role.LEADING)
    yield reading(_READY, moment.ready)
    yield reading(_HELD, moment.held_topics)
    yield reading(_INFO, 1, __version__)
    for each in moment.shards:
        yield from _of_shard(relay, each)
    yield from _of_backlog(moment)


def relaying(shard: ShardSnapshot) -> bool:
    """Whether a shard has recovered, and reads and sends."""
    return shard.state is Phase.RUNNING and bool(shard.gauges.get("relaying"))


def _of_shard(relay: str, shard: ShardSnapshot) -> Iterator[Reading]:
    labels = (relay, str(shard.shard))
    yield Reading(family=_SHARD_UP, labels=labels, value=relaying(shard))
    if shard.resident_bytes is not None:
        yield Reading(family=_SHARD_MEMORY, labels=labels, value=shard.resident_bytes)
    for name, family in (("in_flight_rows", _IN_FLIGHT_ROWS), ("in_flight_keys", _IN_FLIGHT_KEYS)):
        if name in shard.gauges:
            yield Reading(family=family, labels=labels, value=shard.gauges[name])


def _of_backlog(moment: Moment) -> Iterator[Reading]:
    labels, backlog = (moment.relay,), moment.backlog
    if moment.asked:
        yield Reading(family=_DATABASE, labels=labels, value=backlog is not None)
    if backlog is None:
        return
    for shard, pending in enumerate(backlog.by_shard):
        yield Reading(family=_PENDING, labels=(*labels, str(shard)), value=pending)
    yield Reading(family=_EXACT, labels=labels, value=backlog.exact)
    yield Reading(family=_OLDEST, labels=labels, value=backlog.oldest_seconds or 0.0)
    yield Reading(family=_DEAD_ROWS, labels=labels, value=backlog.dead)
    yield Reading(family=_BLOCKING, labels=labels, value=backlog.blocking)


def _split(counts: Mapping[str, Number], prefix: str) -> list[tuple[str, Number]]:
    """Return the figures whose names are the prefix, a point and a kind, by kind."""
    start = f"{prefix}."
    return sorted((name.removeprefix(start), value) for name, value in counts.items() if name.startswith(start))
