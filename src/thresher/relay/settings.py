"""The settings of a relay: frozen values, read once, which are sent to its shards."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from thresher.config.problem import ConfigurationInvalid
from thresher.config.report import as_text, no_such_key
from thresher.core.secrets import SecretText, kept_properties
from thresher.db import TableName
from thresher.db.names import InvalidName
from thresher.db.outbox_store import Settling
from thresher.db.postgres.dsn import kept_dsn
from thresher.db.shape import Shape
from thresher.delivery.rules import Poison
from thresher.relay.misplaced_keys import belongs
from thresher.spark.policy import Policy

# How the relay lets the engine supervise its shards, unless somebody says otherwise.
POLICY = Policy(back_off_most_seconds=5.0, healthy_seconds=10.0)

__all__ = [
    "POLICY",
    "Coordination",
    "Delivery",
    "Dispatch",
    "Limits",
    "Settings",
    "Settling",
    "ShardAssignment",
    "TopicLocking",
]


class Delivery(enum.StrEnum):
    """The delivery guarantee."""

    # For readers with isolation.level=read_committed.
    EXACTLY_ONCE = "exactly-once"
    # For all readers: a duplicate directly follows its original within its key.
    AT_LEAST_ONCE = "at-least-once"


class Coordination(enum.StrEnum):
    """How the processes of a relay share its outbox."""

    # One process leads, and its shards share the keys. The others are standbys.
    LEADER = "leader"
    # All processes work, each on the topics that it has locked.
    TOPIC_LOCK = "topic-lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLocking:
    """How topics are locked, where the coordination is by topic locks."""

    # After this time without a renewal, another process may take a lock. A topic rests this long after an error.
    lock_seconds: float = 60.0
    # The pause between two rounds.
    rest_seconds: float = 0.5
    # The number of parts, by key, in which a topic is locked; 1 for topics that are not named here.
    split_topics: Mapping[str, int] = field(default_factory=dict)
    # Topics of which only the newest message of each key is sent.
    compact_topics: tuple[str, ...] = ()


class Dispatch(enum.StrEnum):
    """Which process sends a row first."""

    # The relay sends every row.
    RELAY = "relay"
    # The application's dispatcher sends a row after its commit. The relay sweeps: it sends rows that wait too long.
    IMMEDIATE = "immediate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a batch and of idleness."""

    batch_rows: int = 10_000
    batch_bytes: int = 16_000_000
    # If a batch takes longer to be read and published, the next ones are smaller.
    batch_seconds: float = 2.0
    poll_seconds: float = 0.001
    grace_seconds: float = 60.0
    horizon_seconds: float = 3600.0
    # At-least-once: the rows of a shard in flight, and the rows that one query marks.
    in_flight_rows: int = 1_000
    mark_rows: int = 1_000
    # Immediate dispatch: the age from which on the relay sends a row, and the pause between two reads.
    min_age_seconds: float = 5.0
    sweep_seconds: float = 1.0


_LIMITS, _LOCKING = Limits(), TopicLocking()
# Settings that a program may give together.
GROUPS: dict[str, type[Limits | TopicLocking]] = {"limits": Limits, "topic_locking": TopicLocking}
_OLD_NAMES = {"dsn": "data_source", "settling": "settle", "transforms": "transform"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a relay, for its driver and its shards. Whatever prints them shows no secret.

    A setting has the same name as in a configuration file. Settings of `limits` and `topic_locking` may also be given
    singly, as `batch_rows=500`. A single setting overrides its group, and an old name overrides the new one, so that
    `dataclasses.replace` takes both. Secrets are kept as `Secret`, and other values as given: a `Harvest`
    checks and converts them as those of a file, and takes `shards="2"` for 2. The same report names missing settings.
    """

    name: str
    data_source: SecretText
    outbox: TableName
    shape: Shape
    delivery: Delivery
    # librdkafka's properties: of all clients, and additional ones of the producers.
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
    # The import path of a function that makes the shards' producers from the client's properties.
    producer_factory: str | None
    # Rows that were stamped longer ago are archived, to the outbox's archive table or to a directory.
    archive_after_seconds: float | None
    archive_to: str

    def __init__(
        self,
        *,
        name: str | None = None,
        kafka: Mapping[str, Any] | None = None,
        data_source: SecretText | None = None,
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
        given["data_source"] = kept_dsn(given["data_source"])
        given |= {section: kept_properties(given[section]) for section in ("kafka", "producer")}
        for setting, value in given.items():
            # A frozen dataclass with its own constructor can set its fields in no other way.
            object.__setattr__(self, setting, value)

    @property
    def dsn(self) -> SecretText:
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
        """The name of this layout in the control row. Dispatchers recognise a sweeper by it."""
        if self.coordination is not Coordination.LEADER:
            return str(self.coordination)
        return str(self.dispatch if self.sweeps else self.delivery)

    @property
    def sweeps(self) -> bool:
        """Whether an application's dispatcher sends rows first, and the relay only those that are left."""
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
class ShardAssignment:
    """The leader's result of a take-over, sent to its shards: the settings, the term, the outbox and its progress."""

    settings: Settings
    outbox_id: str
    term: str
    # When the term was written, and the database's incarnation then.
    term_time: datetime
    since: str
    progress_topic_id: str
    # The secret that progress records are sealed with.
    secret: SecretText = field(repr=False)
    # Differences between the outbox and the table that Thresher would create, as of the take-over.
    differences: frozenset[str] = frozenset()
    # The import path of a function that is called at each crash point: for crash tests.
    hook: str | None = None
