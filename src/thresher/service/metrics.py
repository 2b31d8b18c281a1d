"""The metrics that every service has, read from the state of its driver.

`family` makes the metric families of services and workloads, with the pipeline's label first. Other labels are the
shard and kinds from a small set, never a key, a topic or a row: the number of series is bounded.
"""

from collections.abc import Iterator, Mapping, Sequence

from thresher import __version__
from thresher.core.topic_name import is_topic
from thresher.observe.figure_sink import STANDING, Number, summed
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.service.health import Role, ShardHealth
from thresher.service.report import ServiceSnapshot
from thresher.service.wording import Wording
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.driver.supervision import Phase

_FENCES = ("term", "broker", "election")
# Longer than any time-out after which a shard goes on without what does not answer.
_STANDING_SECONDS = 30.0
# Kinds of errors that every service may have.
_ERROR_KINDS = ("superseded", "unexpected")


def family(label: str, kind: MetricKind, name: str, help_: str, *labels: str) -> Family:
    """Return a metric family whose first label names the pipeline, such as `relay`."""
    end = "_total" if kind is MetricKind.COUNTER else ""
    return Family(name=f"thresher_{name}{end}", kind=kind, help=help_, labels=(label, *labels))


def working(shard: ShardSnapshot, wording: Wording) -> bool:
    """Whether a shard has recovered and processes rows."""
    return shard.state is Phase.RUNNING and bool(shard.gauges.get(wording.doing))


def standing(shards: Sequence[ShardSnapshot]) -> dict[int, str]:
    """Return the shards that take rows and have brought none to a fate for long, each with what it does."""
    found = {each.shard: stands(each.gauges) for each in shards if each.state is Phase.RUNNING}
    return {shard: told for shard, told in found.items() if told is not None}


def stands(gauges: Mapping[str, Number]) -> str | None:
    """Return what a shard with these gauges does if its rows have stood for long; otherwise None."""
    stood = gauges.get(STANDING, 0)
    if stood < _STANDING_SECONDS:
        return None
    return f"rows that may be sent have stood for {stood:.0f} s, and none of them was sent or set aside"


def shard_health(shard: ShardSnapshot, wording: Wording) -> ShardHealth:
    """Return the facts about a shard that readiness depends on."""
    return ShardHealth(
        shard=shard.shard,
        state=str(shard.state),
        working=working(shard, wording),
        last_error=shard.last_error,
        failures=shard.restarts + (shard.state is Phase.BACKING_OFF),
    )


class ServiceMetrics:
    """The metric families of a pipeline's service. Kinds of errors are shown as 0 before they happen."""

    def __init__(self, wording: Wording, error_kinds: Sequence[str] = (), servers: Sequence[str] = ()) -> None:
        self._wording = wording
        label, verb = wording.label, wording.verb
        counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
        # Counted for each shard, under these names.
        self._by_shard = {
            "restarts": family(label, counter, "shard_restarts", "Attempts at a shard after its first.", "shard"),
            "events_dropped": family(
                label, counter, "dropped_events", "Events that shards reported faster than the driver took them.",
                "shard",
            ),
        }  # fmt: skip
        self._errors = family(
            label,
            counter,
            "errors",
            "Errors that ended an attempt at a shard, a take-over, a watch or a probe of a server, by kind.",
            "kind",
        )
        self._fences = family(
            label, counter, "fences",
            "Times that this process was fenced: by a newer 'term', by the 'broker' or by the 'election'.", "by",
        )  # fmt: skip
        self._take_overs = family(label, counter, "takeovers", "Times that this process took over.")
        self._step_downs = family(
            label, counter, "step_downs", "Times that this process gave leadership up because it made no progress."
        )
        self._servers = {
            server: family(
                label,
                gauge,
                f"{server}_up",
                f"1 while the {server} answers: the last attempt to reach it succeeded, a minute ago at most.",
            )
            for server in servers
        }
        self._leader = family(label, gauge, "leader", f"1 while this process leads the {label}.")
        self._ready = family(
            label,
            gauge,
            "ready",
            f"1 while /readyz says so: a leader whose shards {verb}, or a standby that could take over.",
        )
        self._alarms = family(
            label, gauge, "alarms", "Alarms that /status shows, except those about topics whose rows wait."
        )
        self._shard_up = family(label, gauge, "shard_up", f"1 while the shard {verb}s.", "shard")
        self._step_age = family(
            label, gauge, "step_age_seconds", "For how long the oldest running step of the shard has run.", "shard"
        )
        self._shard_memory = family(label, gauge, "shard_resident_bytes", "Memory of the shard's process.", "shard")
        self._info = family(label, gauge, "build_info", "1, with the version.", "version")
        self._none_yet: dict[str, Number] = {
            "takeovers": 0,
            "step_downs": 0,
            **{f"fences.{by}": 0 for by in _FENCES},
            **{f"errors.{kind}": 0 for kind in (*error_kinds, *_ERROR_KINDS)},
        }

    @property
    def families(self) -> tuple[Family, ...]:
        """All metric families of the service."""
        return (
            *self._by_shard.values(), self._errors, self._fences, self._take_overs, self._step_downs, self._leader,
            self._ready, self._alarms, *self._servers.values(), self._shard_up, self._step_age, self._shard_memory,
            self._info,
        )  # fmt: skip

    def readings(self, snapshot: ServiceSnapshot) -> Iterator[Reading]:
        """Yield the present reading of every metric. An unknown value is left out, rather than shown as 0."""
        name = snapshot.name

        def reading(of: Family, value: float, *labels: str) -> Reading:
            return Reading(family=of, labels=(name, *labels), value=value)

        together = summed([self._none_yet, snapshot.driver, *snapshot.counts.values()])
        for shard, counts in sorted(snapshot.counts.items()):
            for figure, of in self._by_shard.items():
                yield reading(of, counts.get(figure, 0), str(shard))
        for kind, value in _split(together, "errors"):
            yield reading(self._errors, value, kind)
        for by, value in _split(together, "fences"):
            yield reading(self._fences, value, by)
        yield reading(self._take_overs, together["takeovers"])
        yield reading(self._step_downs, together["step_downs"])
        for server, of in self._servers.items():
            if server in snapshot.servers:
                yield reading(of, snapshot.servers[server].up)
        yield reading(self._leader, snapshot.role is Role.LEADING)
        yield reading(self._ready, snapshot.ready)
        # Alarms that are not about a topic have names that no topic can have.
        yield reading(self._alarms, sum(not is_topic(each) for each in snapshot.alarms))
        yield reading(self._info, 1, __version__)
        for each in snapshot.shards:
            yield reading(self._shard_up, working(each, self._wording), str(each.shard))
            yield reading(self._step_age, max(each.steps.values(), default=0.0), str(each.shard))
            if each.resident_bytes is not None:
                yield reading(self._shard_memory, each.resident_bytes, str(each.shard))


def _split(counts: Mapping[str, Number], prefix: str) -> list[tuple[str, Number]]:
    """Return the counts named `<prefix>.<kind>`, sorted, by kind."""
    start = f"{prefix}."
    return sorted((name.removeprefix(start), value) for name, value in counts.items() if name.startswith(start))
