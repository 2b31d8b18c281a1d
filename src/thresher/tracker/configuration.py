"""The tracker's configuration: the client's file, with the tracker's own keys in the section `redelivery-tracker`.

Each key is declared here once. Its flag, its environment variable and its row in docs/configuration.md are generated
from the declaration. After a change, run `maintenance/configuration_table.py` to update that page.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from thresher.config.contradiction import contradictions
from thresher.config.document import read
from thresher.config.environment import from_environment
from thresher.config.form import Rule
from thresher.config.loading import Completed, complete, lay_over
from thresher.config.report import Problem, no_such_key
from thresher.config.setting import keys_of
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.queue.configuration import QueueConfig
from thresher.queue.limits import limit_of_all, limits_by_queue
from thresher.service.cool_down import STEP_DOWN_SECONDS
from thresher.service.form import OF_ELECTION, POLLS_IN_TIME, ServiceForm, election_keys_fit
from thresher.spark.policy import Policy
from thresher.tracker.settings import POLICY, TrackerSettings

logger = logging.getLogger(__name__)

SECTION = "redelivery-tracker"
_TWELVE_HOURS = 43_200_000


class _OwnKeys(QueueConfig):
    """The client's keys, and the keys that only a tracker has."""

    use_now_if_no_marker_seen: int = Field(
        default=0,
        ge=0,
        le=_TWELVE_HOURS,
        alias="use-now-if-no-marker-seen",
        description="Milliseconds after the last marker from which the tracker's clock advances without markers. "
        "kafka-mq-go needs a delay, because it may not have read all markers yet. Here 0 is safe: the clock advances "
        "only after all markers were read.",
    )
    num_offsets_per_commit: int = Field(
        default=1_000,
        ge=1,
        le=1_000_000,
        alias="num-offsets-per-commit",
        description="Markers after which the offset is committed. It is also committed every second, and at most five "
        "times a second.",
    )
    shards: int = Field(
        default=1,
        ge=1,
        le=1_024,
        description="Spark tasks that share the partitions of the marker topic. Tasks beyond the number of partitions "
        "are idle.",
    )
    memory_mb: int = Field(
        default=2_048,
        ge=256,
        le=1_048_576,
        description="The maximum memory of a shard, in megabytes. A message in progress needs 0.9 to 2.8 kB. Beyond an "
        "eighth of the memory, payloads are in a temporary file of at most 16 times this size.",
    )
    accept_lost_markers: bool = Field(
        default=False,
        alias="accept-lost-markers",
        description="Continue although markers were removed before the tracker was done with them. Messages started by "
        "the removed markers are not redelivered.",
    )
    election: ElectionKind = Field(
        default=ElectionKind.NELI,
        description="The leader election among the trackers of one pair of topics. `neli` uses a consumer group; with "
        "`none`, the tracker that started last leads.",
    )
    step_down_seconds: float = Field(
        default=STEP_DOWN_SECONDS,
        ge=1,
        le=86_400,
        description="Seconds without progress after which a leader that cannot reach its broker steps down. With "
        "`election: none`, it never steps down.",
    )

    @field_validator("election")
    @classmethod
    def _without_database(cls, kind: ElectionKind) -> ElectionKind:
        if kind is ElectionKind.LEASE:
            raise ValueError("a lease is a row in a database, and a tracker has none: use neli")
        return kind


class TrackerForm(ServiceForm, _OwnKeys):
    """Every key of a tracker: the client's, the tracker's own, and those of every service."""

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """The rules that involve several keys."""
        return (
            *QueueConfig.rules(),
            POLLS_IN_TIME,
            election_keys_fit(OF_ELECTION | {"leader_group": ElectionKind.NELI}),
        )

    @property
    def settings(self) -> TrackerSettings:
        """The settings that the shards need."""
        return TrackerSettings(
            message_topic=self.message_topic,
            marker_topic=self.marker_topic,
            dead_topic=self.dead_topic,
            kafka=self.clients,
            producer=self.producer,
            consumer=self.consumer,
            shards=self.shards,
            limit=limit_of_all(self),
            limits=limits_by_queue(self),
            markers_per_commit=self.num_offsets_per_commit,
            use_now_after_seconds=self.use_now_if_no_marker_seen / 1000,
            memory_bytes=self.memory_mb << 20,
            max_message_bytes=self.max_message_bytes,
            accept_lost_markers=self.accept_lost_markers,
        )


# The keys of the section: all except the client's.
OWN_KEYS = tuple(key for key in keys_of(TrackerForm) if key not in keys_of(QueueConfig))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerConfiguration:
    """The complete configuration of a tracker."""

    form: TrackerForm
    completed: Completed[TrackerForm]

    @property
    def settings(self) -> TrackerSettings:
        """The settings that the shards need."""
        return self.form.settings

    @property
    def election(self) -> ElectionSettings:
        """The settings of the leader election."""
        form = self.form
        # Not the group of the tracker's offsets, which must have no members.
        group = form.leader_group or f"{form.settings.name}.leader"
        return replace(form.election_settings(form.election), leader_group=group)

    @property
    def policy(self) -> Policy:
        """How the engine supervises the shards.

        The engine's memory limit is far above the shard's own. At its limit the engine restarts a worker, which would
        read everything again and end the same way.
        """
        return replace(POLICY, memory_bytes=2 * self.settings.memory_bytes)


def load_tracker_config(
    path: Path | None,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    warn: Callable[[str], object] = logger.warning,
) -> TrackerConfiguration:
    """Read and check a configuration: a file, then the environment, then flags. Raises `ConfigurationInvalid`."""
    variables = from_environment(TrackerForm, environment)
    given: dict[str, Any] = {}
    problems: list[Problem] = []
    layers: list[dict[str, Any]] = []
    for layer in (read(path) if path is not None else {}, variables.keys, flags):
        named = {_key(str(name)): value for name, value in layer.items() if value is not None}
        problems += _lift(named)
        problems += lay_over(TrackerForm, given, named)
        layers.append(named)
    problems += contradictions(TrackerForm, layers[0], layers[1], given)
    completed = complete(TrackerForm, given, problems=[*problems, *variables.problems], name_of=_name_in_file)
    for remark in variables.remarks:
        warn(completed.secrets.mask(remark))
    return TrackerConfiguration(form=completed.form, completed=completed)


def tracker_configured(given: QueueConfig | Mapping[str, Any]) -> TrackerConfiguration:
    """Return a checked configuration from a program's keys. Raises `ConfigurationInvalid`."""
    keys = given.model_dump(by_alias=True, exclude_unset=True) if isinstance(given, QueueConfig) else dict(given)
    named = {_key(str(name)): value for name, value in keys.items()}
    problems = [*_lift(named)]
    completed = complete(TrackerForm, named, problems=problems, name_of=_name_in_file)
    return TrackerConfiguration(form=completed.form, completed=completed)


def _lift(given: dict[str, Any]) -> Iterator[Problem]:
    """Move the section's keys to the top level, where the form expects them."""
    section = given.pop(SECTION, {})
    if not isinstance(section, Mapping):
        yield SECTION, "keys with their values are needed"
        return
    for name, value in section.items():
        key = _key(str(name))
        if key not in OWN_KEYS:
            yield f"{SECTION}.{name}", no_such_key(key, OWN_KEYS)
        elif value is not None:
            given[key] = value


def _key(name: str) -> str:
    """Return the key with this name, which may be written with dashes or underscores."""
    keys = keys_of(TrackerForm)
    return next((each for each in (name, name.replace("_", "-"), name.replace("-", "_")) if each in keys), name)


def _name_in_file(key: str) -> str:
    return f"{SECTION}.{key}" if key.partition(".")[0] in OWN_KEYS else key
