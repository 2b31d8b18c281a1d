"""The configuration keys of a relay: their bounds, and the rules between them.

Each key is declared here once. Its flag, its environment variable and its row in docs/configuration.md are generated
from the declaration. After a change, run `maintenance/configuration_table.py` to update the table.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, field_validator

from thresher.archive.target import MOST_SECONDS, TABLE, target_of
from thresher.config.data_source import DataSource
from thresher.config.form import Form, KafkaProperties, Properties, Rule, Texts
from thresher.config.function_paths import FunctionPaths
from thresher.config.kafka_properties import KafkaSections, brokers_of, with_one_name_for_servers
from thresher.config.setting import DefaultText, Required, Servers, Shorthand, keys_of
from thresher.core.errors import shorten
from thresher.core.topic_name import is_topic
from thresher.db import TableName
from thresher.delivery.names import valid_name
from thresher.delivery.rules import Poison
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.form_rules import (
    OF_ELECTION,
    OF_LOCKING,
    archives_what_stays,
    can_sweep,
    has_a_name,
    has_a_table,
    locks_topics,
    settles_its_shape,
)
from thresher.kafka.transactional import GUARDED, properties
from thresher.outbox.shape import BUCKETS, Shape
from thresher.relay.settings import POLICY, Coordination, Delivery, Dispatch, Limits, Settling, TopicLocking
from thresher.service import form as service_form
from thresher.service.cool_down import STEP_DOWN_SECONDS
from thresher.service.form import POLLS_IN_TIME, ServiceForm

STATUS = "127.0.0.1:8640"
_OWN_CLIENT = frozenset({"group.id", "isolation.level", "enable.auto.commit", "enable.partition.eof", "error_cb"})
_LIMITS = Limits()
_ELECTION = ElectionSettings()
_LOCKING = TopicLocking()
# The number of rows that Deimos sends at once.
LOCKED_ROWS = 1_000
_ROWS = 40_000


class _OwnKeys(Form):
    """The keys that only a relay has."""

    name: Annotated[str | None, DefaultText("`leader_group`")] = Field(
        default=None,
        description="The relay's identity, shared by all its processes. Each outbox needs its own name. The name is "
        "the prefix of the transactional ids and of the topic `<name>.progress`.",
    )
    data_source: DataSource = Field(
        default=None, description="Postgres connection string or URL of the primary server."
    )  # fmt: skip
    outbox: str = Field(
        default="outbox", description="The outbox table, without its schema. The name is case-sensitive."
    )
    # `schema` is the model's own; the key is without the underscore.
    schema_: Annotated[str | None, DefaultText("`search_path`")] = Field(
        default=None, alias="schema", description="The schema of the outbox table. The name is case-sensitive."
    )
    shape: Shape = Field(
        default=Shape.THRESHER,
        description="The layout of the outbox table. `goharvest` and `deimos` are tables that were created for these "
        "tools.",
    )
    delivery: Delivery = Field(
        default=Delivery.EXACTLY_ONCE,
        description="The guarantee. `exactly-once` holds for consumers with `isolation.level=read_committed`, "
        "`at-least-once` for all consumers.",
    )
    kafka: Annotated[
        KafkaProperties,
        Servers(brokers_of),
        Shorthand(
            name="bootstrap",
            property_name="bootstrap.servers",
            description="Kafka's brokers, as HOST:PORT[,HOST:PORT…].",
        ),
        Required("where is the broker ('bootstrap.servers')?"),
    ] = Field(
        default={},
        description="Properties of every Kafka client. The names are librdkafka's: see "
        "[Kafka's properties](#kafkas-properties).",
    )
    producer: KafkaProperties = Field(
        default={},
        description="Properties of the producers alone, which override `kafka`.",
    )
    shards: int = Field(
        default=2,
        ge=1,
        le=BUCKETS,
        description="The number of Spark tasks that share the keys. It may change between two runs.",
    )
    settle: Settling = Field(
        default=Settling.DELETE,
        description="The action for a row after it was sent. `stamp` keeps the row and sets its dispatched time; it "
        "needs our own table layout. You may delete or archive stamped rows at any time.",
    )
    archive_after_seconds: Annotated[float | None, DefaultText("off")] = Field(
        default=None,
        ge=1,
        le=MOST_SECONDS,
        description="Seconds after its dispatched time at which a stamped row is moved to the archive. Needs `settle: "
        "stamp`.",
    )
    archive_to: str = Field(
        default=TABLE,
        description="The archive: `table` for `<outbox>_archive`, or the absolute path of a directory for Parquet "
        "files.",
    )
    dispatch: Dispatch = Field(
        default=Dispatch.RELAY,
        description="The process that sends a row first. With `immediate`, your application's `Dispatcher` sends it "
        "right after the commit, and the relay sends the rows that dispatchers have left: see "
        "[the sweeper](sweeper.md).",
    )
    min_age_seconds: float = Field(
        default=_LIMITS.min_age_seconds,
        ge=0.1,
        le=86_400,
        description="Immediate dispatch: the age in seconds at which the relay sends a row that no dispatcher has "
        "sent, by the database's clock.",
    )
    sweep_seconds: float = Field(
        default=_LIMITS.sweep_seconds,
        gt=0.01,
        le=3_600,
        description="Immediate dispatch: seconds between two searches of the relay for such rows.",
    )
    poison: Poison = Field(
        default=Poison.DEAD_LETTER,
        description="The action for a row that can never be sent. `dead-letter` moves it to `<outbox>_dead`; "
        "`block-key` also holds later rows of its key; `halt` ends the relay.",
    )
    transform: FunctionPaths = Field(
        default=(), description="Functions that change or filter rows, as package.module:function, in this order."
    )
    batch_rows: int = Field(
        default=_LIMITS.batch_rows,
        ge=1,
        le=_ROWS,
        description="Exactly once: the maximum number of rows in a transaction. After slow ones, fewer rows are sent "
        "at once.",
    )
    batch_bytes: int = Field(
        default=_LIMITS.batch_bytes, ge=1_000, description="The maximum number of bytes in a transaction."
    )
    batch_seconds: float = Field(
        default=_LIMITS.batch_seconds,
        gt=0,
        le=5,
        description="The seconds that a batch should take at most. After a slow batch, the next ones are smaller.",
    )
    poll_seconds: float = Field(
        default=_LIMITS.poll_seconds, gt=0, le=60, description="Seconds between two polls of an idle shard."
    )
    grace_seconds: float = Field(
        default=_LIMITS.grace_seconds,
        ge=0,
        le=86_400,
        description="Seconds to wait for a missing or forbidden topic, a missing partition, a broker that refuses a "
        "row's timestamp, or a refused election, before it counts as failed.",
    )
    horizon_seconds: float = Field(
        default=_LIMITS.horizon_seconds,
        ge=60,
        allow_inf_nan=False,
        description="Seconds for which progress is kept. Rows that a restore of the database brings back within this "
        "time are not sent again.",
    )
    in_flight_rows: int = Field(
        default=_LIMITS.in_flight_rows,
        ge=1,
        le=_ROWS,
        description="At least once: the maximum number of rows of a shard that are sent and not purged.",
    )
    mark_rows: int = Field(
        default=_LIMITS.mark_rows,
        ge=1,
        le=_ROWS,
        description="At least once: the maximum number of rows that one query marks.",
    )
    back_off_seconds: float = Field(
        default=POLICY.back_off_seconds,
        gt=0,
        le=3_600,
        description="Seconds until a failed shard restarts, the first time. The wait doubles with each further "
        f"failure, up to {POLICY.back_off_most_seconds:g} s. Up to half of each wait is left out at random.",
    )
    coordination: Coordination = Field(
        default=Coordination.LEADER,
        description="How several processes share the outbox. With `leader`, one relays and the others stand by. With "
        "`topic-lock`, all relay, each the topics whose locks it holds.",
    )
    lock_seconds: float = Field(
        default=_LOCKING.lock_seconds,
        ge=1,
        le=3_600,
        description="topic-lock: seconds after which the lock of a dead process may be taken, and for which a topic is "
        "paused after an error.",
    )
    rest_seconds: float = Field(
        default=_LOCKING.rest_seconds,
        gt=0,
        le=60,
        description="topic-lock: seconds between two rounds over all topics.",
    )
    split_topics: Properties = Field(
        default={},
        description="topic-lock: topics that are locked in parts by key, each with its number of parts. The database "
        "records the number; `thresher topics split` changes it.",
    )
    compact_topics: Texts = Field(
        default=(),
        description="topic-lock: topics of which only the newest pending message of each key is sent.",
    )
    election: ElectionKind = Field(
        default=_ELECTION.kind,
        description="The leader election among relays of one name. `lease` uses a row in the database, `neli` a "
        "consumer group; with `none`, the relay that started last leads.",
    )
    lease_seconds: float = Field(
        default=_ELECTION.lease_seconds,
        ge=0.2,
        le=3_600,
        description="lease: seconds for which a lease is valid if it is not renewed.",
    )
    step_down_seconds: float = Field(
        default=STEP_DOWN_SECONDS,
        ge=1,
        le=86_400,
        description="Seconds without progress after which a leader steps down: it cannot reach its database or its "
        "broker, and rows are pending or may be. With `election: none`, it never steps down.",
    )

    @field_validator("name")
    @classmethod
    def _name(cls, name: str | None) -> str | None:
        if name is not None and not valid_name(name):
            raise ValueError(f"1 to 200 of the characters a-z A-Z 0-9 . _ - are needed, not {shorten(name)}")
        return name

    @field_validator("outbox", mode="before")
    @classmethod
    def _outbox(cls, given: object) -> object:
        # A program's `TableName` is taken as it is.
        return given.table if isinstance(given, TableName) else given

    @field_validator("archive_to")
    @classmethod
    def _archive_to(cls, place: str) -> str:
        target_of(place)
        return place

    @field_validator("kafka")
    @classmethod
    def _servers(cls, given: dict[str, Any]) -> dict[str, Any]:
        return with_one_name_for_servers(given)

    @field_validator("split_topics")
    @classmethod
    def _parts(cls, given: dict[str, Any]) -> dict[str, int]:
        return {_topic(topic): _number_of_parts(topic, parts) for topic, parts in given.items()}

    @field_validator("compact_topics")
    @classmethod
    def _topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(_topic, topics))

    @property
    def table(self) -> TableName:
        """The outbox."""
        return TableName(table=self.outbox, schema=self.schema_)


def _topic(name: str) -> str:
    if not is_topic(name):
        raise ValueError(f"{shorten(name)} cannot be a topic's name")
    return name


def _number_of_parts(topic: str, parts: Any) -> int:
    # A flag gives text.
    number = int(parts) if isinstance(parts, str) and parts.isascii() and parts.isdigit() else parts
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= BUCKETS:
        raise ValueError(f"{topic}: 1 to {BUCKETS} parts are possible, not {shorten(parts)}")
    return number


class RelayForm(ServiceForm, _OwnKeys):
    """Every key of a relay: its own, and those that all Thresher processes share."""

    @property
    def identity(self) -> str:
        """The relay's name, or that of its group. It is never derived from a host, a process or a program."""
        return self.name or self.leader_group or ""

    @property
    def locking(self) -> TopicLocking:
        """The settings of topic locks."""
        return TopicLocking(**{key: getattr(self, key) for key in OF_LOCKING})

    @property
    def limits(self) -> Limits:
        """The limits of batches. With topic locks, the default batch is smaller."""
        limits = Limits(**{name: getattr(self, name) for name in Limits.__slots__})
        if self.coordination is Coordination.TOPIC_LOCK and "batch_rows" not in self.model_fields_set:
            return replace(limits, batch_rows=LOCKED_ROWS)
        return limits

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """The rules between keys."""
        return _RULES


KEYS = keys_of(RelayForm)


_KAFKA = KafkaSections(
    sections=("kafka", "producer"),
    guarded=GUARDED | _OWN_CLIENT,
    guarded_because=lambda form: f"{form.delivery} depends on the relay's value: leave it out",
    producer=lambda given: properties("trial", given),
)
_RULES = (
    Rule(frozenset({"name", "leader_group"}), has_a_name),
    Rule(frozenset({"outbox", "schema"}), has_a_table),
    Rule(frozenset({"shape", "settle"}), settles_its_shape),
    Rule(
        frozenset(
            {
                "coordination",
                "delivery",
                "transform",
                "election",
                "dispatch",
                "archive_after_seconds",
                *OF_LOCKING,
                *OF_ELECTION,
            }
        ),
        locks_topics,
    ),
    Rule(frozenset({"archive_after_seconds", "settle"}), archives_what_stays),
    Rule(frozenset({"dispatch", "shape", "settle", "delivery", "poison", "transform"}), can_sweep),
    service_form.election_keys_fit(OF_ELECTION),
    POLLS_IN_TIME,
    *_KAFKA.rules,
)
