"""The configuration keys of a tail: their bounds, and the rules between them.

Each key is declared here once. Its flag, its environment variable and its row in docs/configuration.md are generated
from the declaration. After a change, run `maintenance/configuration_table.py` to update the table.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from thresher.config.data_source import DataSource
from thresher.config.form import Form, KafkaProperties, Rule
from thresher.config.function_paths import FunctionPaths
from thresher.config.kafka_properties import KafkaSections, brokers_of, with_one_name_for_servers
from thresher.config.loading import Completed, load
from thresher.config.report import Problem
from thresher.config.setting import DefaultText, Required, Servers, Shorthand
from thresher.core.errors import InvalidInput, shorten
from thresher.db import TableName
from thresher.db.log_names import is_slot_name, log_prefix
from thresher.db.names import schema_within
from thresher.delivery.names import valid_name
from thresher.delivery.rules import Poison
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.kafka.transactional import GUARDED, properties
from thresher.outbox.shape import Shape
from thresher.service import form as service_form
from thresher.service.cool_down import STEP_DOWN_SECONDS
from thresher.service.form import POLLS_IN_TIME, ServiceForm
from thresher.spark.policy import Policy
from thresher.tail.settings import POLICY, TailLimits, TailSettings, Via

logger = logging.getLogger(__name__)

_LIMITS = TailLimits()
_ELECTION = ElectionSettings()
_OWN_CLIENT = frozenset({"group.id", "isolation.level", "enable.auto.commit", "enable.partition.eof", "error_cb"})
OF_ELECTION = {**service_form.OF_ELECTION, "lease_seconds": ElectionKind.LEASE}


class _OwnKeys(Form):
    """The keys that only a tail has."""

    name: Annotated[
        str | None, Required("use the same name in all processes of this tail, and another for every other outbox")
    ] = Field(
        default=None,
        description="The tail's identity, shared by all its processes. If an outbox is switched between a relay and a "
        "tail, both have the same name. The name is the prefix of the transactional ids and of `<name>.tail.progress`.",
    )
    data_source: DataSource = Field(
        default=None, description="Postgres connection string or URL. Its role needs the attribute `REPLICATION`."
    )
    outbox: str = Field(default="outbox", description="The outbox, without its schema. The name is case-sensitive.")
    # `schema` is the model's own; the key is without the underscore.
    schema_: Annotated[str | None, DefaultText("`search_path`")] = Field(
        default=None, alias="schema", description="The schema of the outbox. The name is case-sensitive."
    )
    via: Via = Field(
        default=Via.TABLE,
        description="The place of the messages. `table`: inserts into the outbox table. `log`: messages of "
        '`Outbox(via="log")`, which are in no table.',
    )
    shape: Shape = Field(default=Shape.THRESHER, description="The layout of the outbox table.")
    slot: Annotated[str | None, DefaultText("after the outbox")] = Field(
        default=None,
        description="The replication slot. The default is `thresher_<outbox>`; with `schema`, it ends in a hash. "
        "`thresher tail slot create` creates it.",
    )
    publication: Annotated[str | None, DefaultText("that of the slot")] = Field(
        default=None, description="The publication of the table's inserts."
    )
    shards: int = Field(
        default=1, ge=1, description="Always 1, because a slot has one reader. For more shards, use a relay."
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
    ] = Field(default={}, description="Properties of every Kafka client. The names are librdkafka's.")
    producer: KafkaProperties = Field(
        default={}, description="Properties of the producers alone, which override `kafka`."
    )
    poison: Poison = Field(
        default=Poison.DEAD_LETTER,
        description="The action for a row that can never be sent: `dead-letter` moves it to `<outbox>_dead`, `halt` "
        "ends the tail.",
    )
    transform: FunctionPaths = Field(
        default=(), description="Functions that change or filter rows, as package.module:function, in this order."
    )
    batch_rows: int = Field(
        default=_LIMITS.batch_rows, ge=1, le=15_000, description="The maximum number of rows in a transaction."
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
    buffer_rows: int = Field(
        default=_LIMITS.buffer_rows,
        ge=1_000,
        le=10_000_000,
        description="The maximum number of rows that are read ahead. If all of them, or about sixty thousand, wait for "
        "their topics, all other rows wait too.",
    )
    buffer_bytes: int = Field(
        default=_LIMITS.buffer_bytes, ge=100_000, description="The approximate maximum of bytes that are read ahead."
    )
    grace_seconds: float = Field(
        default=_LIMITS.grace_seconds,
        ge=0,
        le=86_400,
        description="Seconds to wait for a missing or forbidden topic, a missing partition, a broker that refuses a "
        "row's timestamp, or a refused election, before it counts as failed.",
    )
    keep_seconds: Annotated[float | None, DefaultText("for ever")] = Field(
        default=None,
        ge=0,
        le=31_536_000,
        description="Seconds after its create time at which a published row is deleted from the table.",
    )
    accept_public_emit: bool = Field(
        default=False,
        description="Start with `via: log` although every role of the database may execute Postgres' "
        "`pg_logical_emit_message`. None of their messages is published, but the tail receives them, of up to a "
        "gigabyte each.",
    )
    retained_alarm_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="Bytes of WAL that the server keeps for the slot. Above this, the tail raises an alarm.",
    )
    retained_limit_bytes: Annotated[int | None, DefaultText("none")] = Field(
        default=None,
        ge=1,
        description="Bytes of WAL that the server keeps for the slot. Above this, the tail ends with exit code 4.",
    )
    back_off_seconds: float = Field(
        default=POLICY.back_off_seconds,
        gt=0,
        le=3_600,
        description="Seconds until a failed shard restarts, the first time. The wait doubles with each further "
        "failure.",
    )
    election: ElectionKind = Field(
        default=_ELECTION.kind,
        description="The leader election among tails of one name. `lease` uses a row in the database, `neli` a "
        "consumer group; with `none`, the tail that started last leads.",
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
        description="Seconds without progress after which a leader that cannot reach its servers steps down.",
    )

    @field_validator("name")
    @classmethod
    def _name(cls, name: str | None) -> str | None:
        if name is not None and not valid_name(name):
            raise ValueError(f"1 to 200 of the characters a-z A-Z 0-9 . _ - are needed, not {shorten(name)}")
        return name

    @field_validator("shards")
    @classmethod
    def _one_reader(cls, shards: int) -> int:
        if shards != 1:
            raise ValueError("a slot has one reader: 1 is needed; for more shards, poll the table with a relay")
        return shards

    @field_validator("poison")
    @classmethod
    def _poison(cls, poison: Poison) -> Poison:
        if poison is Poison.BLOCK_KEY:
            raise ValueError(
                "'block-key' is not possible with a tail: a dead row that is replayed comes into the WAL after later "
                "rows of its key; use 'dead-letter' or 'halt'"
            )
        return poison

    @field_validator("kafka")
    @classmethod
    def _servers(cls, given: dict[str, Any]) -> dict[str, Any]:
        return with_one_name_for_servers(given)


class TailForm(ServiceForm, _OwnKeys):
    """Every key of a tail: its own, and those that all Thresher processes share."""

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """The rules between keys."""
        return _RULES

    @property
    def settings(self) -> TailSettings:
        """The settings of the driver and the shard."""
        return TailSettings(
            name=self.name or "",
            dsn=self.data_source or "",
            outbox=TableName(table=self.outbox, schema=self.schema_),
            via=self.via,
            shape=self.shape,
            slot=self.slot,
            publication=self.publication,
            kafka=self.kafka,
            producer=self.producer,
            poison=self.poison,
            transforms=self.transform,
            limits=TailLimits(**{name: getattr(self, name) for name in TailLimits.__slots__}),
            keep_seconds=self.keep_seconds,
            accept_public_emit=self.accept_public_emit,
            retained_alarm_bytes=self.retained_alarm_bytes,
            retained_limit_bytes=self.retained_limit_bytes,
        )


def _has_an_outbox(form: TailForm, given: Mapping[str, Any]) -> Iterator[Problem]:
    if why := schema_within("outbox", form.outbox, form.schema_):
        yield "outbox", why
        return
    try:
        TableName(table=form.outbox, schema=form.schema_)
    except InvalidInput as error:
        yield "outbox", str(error)
    if form.slot is not None and not is_slot_name(form.slot):
        yield "slot", f"1 to 63 lower-case letters, digits and underscores are needed, not {shorten(form.slot)}"
    if form.via is Via.LOG:
        try:
            log_prefix(TableName(table=form.outbox, schema=form.schema_))
        except InvalidInput as error:
            yield "outbox", str(error)
        if form.shape is not Shape.THRESHER:
            yield "shape", "messages in the WAL have no table, and no shape but our own: leave it out"
        if given.get("keep_seconds") is not None:
            yield "keep_seconds", "messages in the WAL are in no table: there is nothing to delete"
    elif form.accept_public_emit:
        yield "accept_public_emit", "a tail of a table is sent no messages: leave it out"


_KAFKA = KafkaSections(
    sections=("kafka", "producer"),
    guarded=GUARDED | _OWN_CLIENT,
    guarded_because=lambda _: "exactly-once depends on the tail's value: leave it out",
    producer=lambda given: properties("trial", given),
)
_RULES = (
    Rule(frozenset({"outbox", "schema", "via", "shape", "slot", "keep_seconds", "accept_public_emit"}), _has_an_outbox),
    service_form.election_keys_fit(OF_ELECTION),
    POLLS_IN_TIME,
    *_KAFKA.rules,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailConfiguration:
    """The complete configuration of a tail."""

    form: TailForm
    completed: Completed[TailForm]

    @property
    def settings(self) -> TailSettings:
        """The settings of the driver and the shard."""
        return self.form.settings

    @property
    def election(self) -> ElectionSettings:
        """How this process competes for leadership."""
        form = self.form
        return form.election_settings(form.election, lease_seconds=form.lease_seconds, grace_seconds=form.grace_seconds)

    @property
    def policy(self) -> Policy:
        """How the engine supervises and restarts the shard."""
        first = self.form.back_off_seconds
        return replace(
            POLICY, back_off_seconds=first, back_off_most_seconds=max(first, POLICY.back_off_most_seconds)
        )  # fmt: skip


def load_tail_config(
    path: Path | None,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    warn: Callable[[str], object] = logger.warning,
    rules: Sequence[Rule] = (),
) -> TailConfiguration:
    """Read and check a configuration: a file, then the environment, then flags. Raises `ConfigurationInvalid`.

    `rules` are checked in addition to the form's own.
    """
    completed = load(TailForm, path, flags, environment, warn=warn, rules=rules)
    return TailConfiguration(form=completed.form, completed=completed)
