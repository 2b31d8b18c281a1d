"""What a relay is told, once, at the edge: frozen values that travel to its shards."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from thresher.config.problem import ConfigurationInvalid
from thresher.config.report import as_text, no_such_key
from thresher.db import TableName
from thresher.db.names import InvalidName
from thresher.db.outbox_store import Settling
from thresher.db.shape import Shape
from thresher.delivery.rules import Poison
from thresher.relay.other_places import belongs
from thresher.spark.policy import Policy

# How the relay lets the engine supervise its shards, unless somebody says otherwise.
POLICY = Policy(back_off_most_seconds=5.0, healthy_seconds=10.0)

__all__ = [
    "POLICY",
    "Coordination",
    "Delivery",
    "Dispatch",
    "Limits",
    "Mandate",
    "Settings",
    "Settling",
    "TopicLocking",
]


class Delivery(enum.StrEnum):
    """What is promised to readers."""

    # To those that read committed records only.
    EXACTLY_ONCE = "exactly-once"
    # To all: a repeat directly follows its original within its key.
    AT_LEAST_ONCE = "at-least-once"


class Coordination(enum.StrEnum):
    """How the processes of a relay share its outbox."""

    # One of them leads, and its shards share the keys.
    LEADER = "leader"
    # All of them work, each on topics that it has locked.
    TOPIC_LOCK = "topic-lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLocking:
    """How topics are locked, where the coordination is by topic locks."""

    # A lock that was not renewed for so long may be taken; an errored topic rests for so long.
    lock_seconds: float = 60.0
    # Between two rounds.
    rest_seconds: float = 0.5
    # Into how many parts, by key, a topic is locked; one, unless it is named here.
    split_topics: Mapping[str, int] = field(default_factory=dict)
    # Topics of which only the newest message of each key is sent.
    compact_topics: tuple[str, ...] = ()


class Dispatch(enum.StrEnum):
    """Who sends a row first."""

    # The relay alone.
    RELAY = "relay"
    # The application's dispatcher, after its commit. The relay sweeps: it sends what has waited too long.
    IMMEDIATE = "immediate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a batch and of idleness."""

    batch_rows: int = 10_000
    batch_bytes: int = 16_000_000
    # What one batch may take to be read and published: the next ones are made smaller when one takes longer.
    batch_seconds: float = 2.0
    poll_seconds: float = 0.001
    grace_seconds: float = 60.0
    horizon_seconds: float = 3600.0
    # At least once: rows of a shard that were sent and are not purged yet, and rows that one query marks.
    in_flight_rows: int = 1_000
    mark_rows: int = 1_000
    # Immediate dispatch: how old a row is that the relay sends, and the time between two looks for one.
    min_age_seconds: float = 5.0
    sweep_seconds: float = 1.0


_LIMITS, _LOCKING = Limits(), TopicLocking()
# Settings that a program may give together.
GROUPS: dict[str, type[Limits | TopicLocking]] = {"limits": Limits, "topic_locking": TopicLocking}
_OLD_NAMES = {"dsn": "data_source", "settling": "settle", "transforms": "transform"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a relay's driver and shards need to know. Secrets are in `data_source` and `kafka`, never shown.

    A setting has the name that it has in a file. Bounds and locking may also be given one by one, as `batch_rows=500`;
    what is given so overrides its group, and an old name its new one, so that `dataclasses.replace` takes both.
    Values are kept as they are given: a `Harvest` judges them as those of a file, and takes `shards="2"` for 2, and
    tells what is missing with all else that is wrong.
    """

    name: str
    data_source: str = field(repr=False)
    outbox: TableName
    shape: Shape
    delivery: Delivery
    # librdkafka's properties: for every client, and for the producers besides.
    kafka: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any] = field(repr=False)
    shards: int
    settle: Settling
    dispatch: Dispatch
    poison: Poison
    transform: tuple[str, ...]
    limits: Limits
    coordination: Coordination
    topic_locking: TopicLocking
    # What the shards make their producers with, by import path: a function of the client's properties.
    producer_factory: str | None
    # Rows that were stamped longer ago than that are archived, to the outbox's archive table or to a directory.
    archive_after_seconds: float | None
    archive_to: str

    def __init__(
        self,
        *,
        name: str | None = None,
        kafka: Mapping[str, Any] | None = None,
        data_source: str | None = None,
        outbox: TableName | str = "outbox",
        schema: str | None = None,
        shape: Shape | str = Shape.THRESHER,
        delivery: Delivery | str = Delivery.EXACTLY_ONCE,
        producer: Mapping[str, Any] | None = None,
        shards: int = 2,
        settle: Settling | str = Settling.DELETE,
        dispatch: Dispatch | str = Dispatch.RELAY,
        poison: Poison | str = Poison.DEAD_LETTER,
        transform: Sequence[str] = (),
        limits: Limits | Mapping[str, Any] = _LIMITS,
        coordination: Coordination | str = Coordination.LEADER,
        topic_locking: TopicLocking | Mapping[str, Any] = _LOCKING,
        producer_factory: str | None = None,
        archive_after_seconds: float | None = None,
        archive_to: str = "table",
        **others: Any,
    ) -> None:
        given: dict[str, Any] = {
            "name": name, "data_source": data_source, "outbox": _table(outbox, schema), "shape": shape,
            "delivery": delivery, "kafka": {} if kafka is None else kafka,
            "producer": {} if producer is None else producer, "shards": shards, "settle": settle, "dispatch": dispatch,
            "poison": poison, "transform": transform, "limits": limits, "coordination": coordination,
            "topic_locking": topic_locking, "producer_factory": producer_factory,
            "archive_after_seconds": archive_after_seconds, "archive_to": archive_to,
        }  # fmt: skip
        _put(given, others)
        for setting, value in given.items():
            # The way of a frozen dataclass that has a constructor of its own.
            object.__setattr__(self, setting, value)

    @property
    def dsn(self) -> str:
        """The old name of `data_source`."""
        return self.data_source

    @property
    def settling(self) -> Settling:
        """The old name of `settle`."""
        return self.settle

    @property
    def transforms(self) -> tuple[str, ...]:
        """The old name of `transform`."""
        return self.transform

    @property
    def mode(self) -> str:
        """The word for this layout in the control row. By it dispatchers know a sweeper."""
        if self.coordination is not Coordination.LEADER:
            return str(self.coordination)
        return str(self.dispatch if self.sweeps else self.delivery)

    @property
    def sweeps(self) -> bool:
        """Whether an application's dispatcher sends rows first, and the relay what is left."""
        return self.dispatch is Dispatch.IMMEDIATE


def _table(outbox: Any, schema: Any) -> Any:
    """Return the table; a name that can be none, or two, stays as it is given, to be judged."""
    if isinstance(outbox, TableName):
        return outbox if schema is None else replace(outbox, schema=schema)
    if not isinstance(outbox, str) or (schema is None and "." in outbox):
        return outbox
    try:
        return TableName(table=outbox, schema=schema)
    except InvalidName:
        return outbox


def _put(given: dict[str, Any], others: Mapping[str, Any]) -> None:
    """Put what was given by an old name, or without its group, into its place. Raises `ConfigurationInvalid`."""
    grouped = {key: group for group, kind in GROUPS.items() for key in kind.__slots__}
    unknown = [key for key in others if key not in grouped and key not in _OLD_NAMES]
    if unknown:
        known = [*given, "schema", *grouped]
        problems = [(key, belongs(key) or no_such_key(key, known)) for key in unknown]
        raise ConfigurationInvalid(as_text(problems), problems)
    for key, value in others.items():
        if key in _OLD_NAMES:
            given[_OLD_NAMES[key]] = value
        elif isinstance(given[grouped[key]], Mapping | Limits | TopicLocking):
            given[grouped[key]] = {**as_mapping(given[grouped[key]]), key: value}
    for group, kind in GROUPS.items():
        if isinstance(given[group], Mapping) and set(given[group]) <= set(kind.__slots__):
            given[group] = kind(**given[group])


def as_mapping(group: Limits | TopicLocking | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group by their names."""
    if isinstance(group, Mapping):
        return {str(key): value for key, value in group.items()}
    return {key: getattr(group, key) for key in group.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mandate:
    """What the leader hands to its shards with the settings: under which term, for which outbox, which progress."""

    settings: Settings
    outbox_id: str
    term: str
    # When it was written, and on which incarnation of the database.
    term_time: datetime
    since: str
    progress_topic_id: str
    # What progress is sealed with.
    secret: str = field(repr=False)
    # What about the outbox differed from the table that we would make, when the leader took over.
    differences: frozenset[str] = frozenset()
    # A function by import path that is called at each named seam: for crash tests.
    hook: str | None = None
