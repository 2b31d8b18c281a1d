"""What a tail is told, once, at the edge: frozen values that travel to its shard."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from thresher.db import TableName
from thresher.db.log_names import slot_name
from thresher.db.shape import Shape
from thresher.delivery.names import progress_topic
from thresher.delivery.progress_topic.progress_log import ProgressSource
from thresher.delivery.progress_topic.reserved_topics import ReservedTopics
from thresher.delivery.rules import Poison
from thresher.delivery.shard.recovery import KnownProgress
from thresher.spark.policy import Policy
from thresher.tail.buffer import Bounds
from thresher.tail.log_source import LogSource, Source, TableSource
from thresher.tail.log_span import UNKNOWN, LogSpan
from thresher.tail.progress import TailProgress, decode

# How a tail lets the engine supervise its shard, unless somebody says otherwise.
POLICY = Policy(back_off_most_seconds=5.0, healthy_seconds=10.0)


class Via(enum.StrEnum):
    """Where an outbox' messages are."""

    # Inserts into a table.
    TABLE = "table"
    # Messages in the log, and in no table.
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLimits:
    """The bounds of a batch, of what is read ahead, and of waiting."""

    batch_rows: int = 10_000
    batch_bytes: int = 16_000_000
    # What one batch may take to be read and published: the next ones are made smaller when one takes longer.
    batch_seconds: float = 2.0
    grace_seconds: float = 60.0
    # Changes that were read and are not published yet.
    buffer_rows: int = 100_000
    buffer_bytes: int = 64_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSettings:
    """Everything that a tail's driver and shard need to know. Secrets are in `dsn` and `kafka`, never shown."""

    name: str
    dsn: str = field(repr=False)
    outbox: TableName
    via: Via = Via.TABLE
    shape: Shape = Shape.THRESHER
    # Both are called after the outbox, unless somebody says otherwise.
    slot: str | None = None
    publication: str | None = None
    # librdkafka's properties: for every client, and for the producers besides.
    kafka: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    poison: Poison = Poison.DEAD_LETTER
    transforms: tuple[str, ...] = ()
    limits: TailLimits = TailLimits()
    # Rows of the table that were published are deleted so long after their create time; None: never.
    keep_seconds: float | None = None
    # Log that the server keeps for the slot: with more, an alarm is raised; with more than the limit, the tail ends.
    retained_alarm_bytes: int = 1 << 30
    retained_limit_bytes: int | None = None
    # What the shard makes its producers with, by import path: a function of the client's properties.
    producer_factory: str | None = None

    @property
    def slot_name(self) -> str:
        """The replication slot."""
        return self.slot or slot_name(self.outbox)

    @property
    def publication_name(self) -> str:
        """The publication."""
        return self.publication or self.slot_name

    @property
    def source(self) -> Source:
        """Where rows come from."""
        if self.via is Via.LOG:
            return LogSource(outbox=self.outbox)
        return TableSource(table=self.outbox, shape=self.shape)

    @property
    def table(self) -> TableName | None:
        """The table whose inserts are read, if there is one."""
        return self.outbox if self.via is Via.TABLE else None

    @property
    def group(self) -> str:
        """What its transactional ids and its progress topic begin with: not those of a relay of the same name."""
        return f"{self.name}.tail"

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of its producers."""
        # As a relay of this shape has it: a key that ruby-kafka has sent stays in its partition.
        own = {"partitioner": "consistent_random"} if self.shape is Shape.DEIMOS else {}
        return {**own, **self.kafka, **self.producer}

    @property
    def bounds(self) -> Bounds:
        """The bounds of what is read ahead."""
        return Bounds(rows=self.limits.buffer_rows, bytes=self.limits.buffer_bytes)

    @property
    def progress(self) -> ProgressSource[TailProgress]:
        """Where its progress lies."""
        topic = progress_topic(self.group)
        return ProgressSource(pipeline=self.name, topic=topic, kafka=self.kafka, decode=decode)

    @property
    def reserved(self) -> ReservedTopics:
        """What says which topics no row may be sent to."""
        return ReservedTopics(progress_topic(self.group), self.kafka)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailMandate:
    """What the leader hands to its shard with the settings: under which term, for which outbox, which progress."""

    settings: TailSettings
    outbox_id: str
    term: str
    # When it was written, and on which incarnation of the database.
    term_time: datetime
    since: str
    progress_topic_id: str
    # What progress is sealed with.
    secret: str = field(repr=False)
    # Up to where the slot was confirmed when the leader took over.
    confirmed: int = 0
    # By what the log is read from here on, if nothing was recorded before.
    span: LogSpan = UNKNOWN
    # An operator has adopted the slot as it is, whatever may be missing before it.
    adopted: bool = False
    # A function by import path that is called at each named seam: for crash tests.
    hook: str | None = None

    @property
    def known_progress(self) -> KnownProgress[TailProgress]:
        """What the shard is told of the progress."""
        return KnownProgress(
            source=self.settings.progress, outbox_id=self.outbox_id, topic_id=self.progress_topic_id
        )  # fmt: skip
