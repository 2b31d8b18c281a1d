"""What a relay is told, once, at the edge: frozen values that travel to its shards."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from thresher.db import TableName
from thresher.db.outbox_store import Settling
from thresher.db.shape import Shape
from thresher.delivery.rules import Poison
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a relay's driver and shards need to know. Secrets are in `dsn` and `kafka`, never shown."""

    name: str
    dsn: str = field(repr=False)
    outbox: TableName
    shape: Shape = Shape.THRESHER
    delivery: Delivery = Delivery.EXACTLY_ONCE
    # librdkafka's properties: for every client, and for the producers besides.
    kafka: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    shards: int = 2
    settling: Settling = Settling.DELETE
    dispatch: Dispatch = Dispatch.RELAY
    poison: Poison = Poison.DEAD_LETTER
    transforms: tuple[str, ...] = ()
    limits: Limits = Limits()
    coordination: Coordination = Coordination.LEADER
    topic_locking: TopicLocking = TopicLocking()
    # What the shards make their producers with, by import path: a function of the client's properties.
    producer_factory: str | None = None
    # Rows that were stamped longer ago than that are archived, to the outbox's archive table or to a directory.
    archive_after_seconds: float | None = None
    archive_to: str = "table"

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
