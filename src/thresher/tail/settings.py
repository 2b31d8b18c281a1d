"""The settings of a tail: frozen values, read once from the configuration, that are sent to its shard."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from thresher.core.secrets import SecretText, kept_properties
from thresher.db import TableName
from thresher.db.log_names import slot_name
from thresher.db.postgres.dsn import kept_dsn
from thresher.db.shape import Shape
from thresher.delivery.names import progress_topic, tail_group
from thresher.delivery.progress_topic.progress_log import ProgressSource
from thresher.delivery.progress_topic.reserved_topics import ReservedTopics
from thresher.delivery.rules import Poison
from thresher.delivery.shard.recovery import KnownProgress
from thresher.spark.policy import Policy
from thresher.tail.buffer import Bounds
from thresher.tail.log_source import LogSource, Source, TableSource
from thresher.tail.log_span import UNKNOWN, LogSpan
from thresher.tail.progress import TailProgress, decode

# The default of how the engine supervises the shard.
POLICY = Policy(back_off_most_seconds=5.0, healthy_seconds=10.0)


class Via(enum.StrEnum):
    """Where an outbox' messages are written."""

    # Inserts into a table.
    TABLE = "table"
    # Messages in the WAL, and in no table.
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLimits:
    """The bounds of a batch, of read-ahead, and of waiting."""

    batch_rows: int = 10_000
    batch_bytes: int = 16_000_000
    # The target time to read and publish a batch: after a slower one, the next batches are smaller.
    batch_seconds: float = 2.0
    grace_seconds: float = 60.0
    # Bounds of the changes that were read and are not published yet.
    buffer_rows: int = 100_000
    buffer_bytes: int = 64_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSettings:
    """The settings of a tail's driver and shard. Secrets in `dsn`, `kafka` and `producer` are kept as `Secret`."""

    name: str
    dsn: SecretText
    outbox: TableName
    # The outbox's name with the schema of the tables beside it, once it was looked up. An outbox without a table keeps
    # its own name, which is part of its messages.
    placed: TableName | None = None
    via: Via = Via.TABLE
    shape: Shape = Shape.THRESHER
    # None: named after the outbox.
    slot: str | None = None
    publication: str | None = None
    # librdkafka's properties: for every client, and additional ones for the producers.
    kafka: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    poison: Poison = Poison.DEAD_LETTER
    transforms: tuple[str, ...] = ()
    limits: TailLimits = TailLimits()
    # Published rows are deleted from the table this long after their create time; None: never.
    keep_seconds: float | None = None
    # Via log: start although every role may write messages to the WAL, which are received and refused.
    accept_public_emit: bool = False
    # Log that the server keeps for the slot: beyond the first an alarm is raised, beyond the second the tail ends.
    retained_alarm_bytes: int = 1 << 30
    retained_limit_bytes: int | None = None
    # Import path of the function that makes the shard's producers from the client's properties.
    producer_factory: str | None = None

    def __post_init__(self) -> None:
        # A frozen dataclass can set its fields in no other way.
        object.__setattr__(self, "dsn", kept_dsn(self.dsn))
        for section in ("kafka", "producer"):
            object.__setattr__(self, section, kept_properties(getattr(self, section)))

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
        """The source of the rows: inserts into the table, or messages in the WAL."""
        if self.via is Via.LOG:
            return LogSource(outbox=self.outbox, placed=self.placed, accept_public_emit=self.accept_public_emit)
        return TableSource(table=self.outbox, shape=self.shape)

    @property
    def table(self) -> TableName | None:
        """The table whose inserts are read, if there is one."""
        return self.outbox if self.via is Via.TABLE else None

    @property
    def beside(self) -> TableName:
        """The name from which the tables beside the outbox have theirs."""
        return self.placed or self.outbox

    @property
    def group(self) -> str:
        """The prefix of transactional ids and progress topic. It differs from that of a relay with the same name."""
        return tail_group(self.name)

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the producers."""
        # As with a relay of this shape: each key stays in the partition to which ruby-kafka has sent it.
        own = {"partitioner": "consistent_random"} if self.shape is Shape.DEIMOS else {}
        return {**own, **self.kafka, **self.producer}

    @property
    def bounds(self) -> Bounds:
        """The bounds of the buffer."""
        return Bounds(rows=self.limits.buffer_rows, bytes=self.limits.buffer_bytes)

    @property
    def progress(self) -> ProgressSource[TailProgress]:
        """Where the progress is stored."""
        topic = progress_topic(self.group)
        return ProgressSource(pipeline=self.name, topic=topic, kafka=self.kafka, decode=decode)

    @property
    def reserved(self) -> ReservedTopics:
        """The topics to which no row may be sent."""
        return ReservedTopics(progress_topic(self.group), self.kafka)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailAssignment:
    """The leader's orders to its shard: the settings, the term, and the identity of outbox and progress topic."""

    settings: TailSettings
    outbox_id: str
    term: str
    # When the term was written, and in which incarnation of the database.
    term_time: datetime
    since: str
    progress_topic_id: str
    # The key with which progress records are sealed.
    secret: SecretText = field(repr=False)
    # The slot's confirmed position at the take-over.
    confirmed: int = 0
    # The span of the WAL from the take-over on: see `LogSpan`. A recorded one continues instead.
    span: LogSpan = UNKNOWN
    # An operator has adopted the slot as it is: changes that may be missing before it are accepted.
    adopted: bool = False
    # Import path of a function that is called at each crash point: for crash tests.
    hook: str | None = None

    @property
    def known_progress(self) -> KnownProgress[TailProgress]:
        """The progress topic, as the shard's recovery needs it."""
        return KnownProgress(
            source=self.settings.progress, topic_id=self.progress_topic_id
        )  # fmt: skip
