"""The configuration of a capture: its keys, the rules between them, and how they are read.

Each key is declared here once. Its flag, its environment variable and its row in docs/configuration.md are generated
from the declaration. After a change, run `maintenance/configuration_table.py` to update the table.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from thresher.capture.settings import CaptureSettings
from thresher.capture.topic_form import topic_mapping, topic_problems
from thresher.config.data_source import DataSource
from thresher.config.form import Form, KafkaProperties, Rule
from thresher.config.kafka_properties import KafkaSections, brokers_of, with_one_name_for_servers
from thresher.config.loading import Completed, complete, load
from thresher.config.report import Problem
from thresher.config.setting import DefaultText, Required, Section, Servers, Shorthand
from thresher.core.errors import shorten
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.service.cool_down import STEP_DOWN_SECONDS
from thresher.service.form import OF_ELECTION, POLLS_IN_TIME, ServiceForm, election_keys_fit

logger = logging.getLogger(__name__)

_ELECTION = ElectionSettings()
# Properties that capture sets itself: its guarantee depends on them.
GUARDED = frozenset(
    {
        "group.id", "isolation.level", "enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof",
        "auto.offset.reset", "allow.auto.create.topics", "error_cb",
    }
)  # fmt: skip
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def _mapping(given: object) -> object:
    if not isinstance(given, Mapping):
        raise ValueError("topics with their keys are needed")  # noqa: TRY004 - pydantic takes this one
    return {str(name): value for name, value in given.items()}


class _OwnKeys(Form):
    """The keys that only a capture has."""

    name: Annotated[
        str, Required("use the same name in all processes of this capture, and another for every other capture")
    ] = Field(
        default="",
        description="The capture's identity, shared by all its processes. Offsets are stored under this name. Under "
        "a new name, a table that has rows is refused until 'thresher capture adopt' begins anew.",
    )
    data_source: DataSource = Field(
        default=None, description="Postgres connection string or URL of the primary server."
    )  # fmt: skip
    # `schema` is the model's own; the key is without the underscore.
    schema_: Annotated[str | None, DefaultText("`search_path`")] = Field(
        default=None, alias="schema", description="The schema of capture's own tables. The name is case-sensitive."
    )
    topics: Annotated[
        dict[str, Any], BeforeValidator(_mapping), Section(), Required("which topics are captured, and to where?")
    ] = Field(
        default={},
        description="The captured topics, each with its keys: see [a topic's keys](capture.md#a-topics-keys).",
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
    consumer: KafkaProperties = Field(
        default={}, description="Properties of the consumers alone, which override `kafka`."
    )  # fmt: skip
    shards: int = Field(
        default=1,
        ge=1,
        le=1_024,
        description="The number of Spark tasks that share the partitions. Tasks beyond the number of partitions are "
        "idle.",
    )
    batch_records: int = Field(
        default=5_000, ge=1, le=100_000, description="The maximum number of records in a database transaction."
    )  # fmt: skip
    most_dead_in_a_row: int = Field(
        default=100,
        ge=0,
        le=1_000_000_000,
        description="The maximum number of consecutive dead records of a topic. If there are more, probably the "
        "mapping is wrong: the last batch's are not stored as dead, and the topic waits with an alarm. If every topic "
        "waits, the capture ends with exit code 4. 0 allows any number.",
    )
    election: ElectionKind = Field(
        default=_ELECTION.kind,
        description="The leader election among captures of one name. `lease` uses a row in the database, `neli` a "
        "consumer group; with `none`, the capture that started last leads.",
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
        description="Seconds without progress after which a leader that cannot reach its servers steps down. With "
        "`election: none`, it never steps down.",
    )

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if name and _NAME.fullmatch(name) is None:
            raise ValueError(f"1 to 200 of the characters a-z A-Z 0-9 . _ - are needed, not {shorten(name)}")
        return name

    @field_validator("kafka")
    @classmethod
    def _servers(cls, given: dict[str, Any]) -> dict[str, Any]:
        return with_one_name_for_servers(given)


class CaptureForm(ServiceForm, _OwnKeys):
    """Every key of a capture: its own, and those that all Thresher processes share."""

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """The rules between keys."""
        return _RULES

    @property
    def settings(self) -> CaptureSettings:
        """The settings of the shards."""
        return CaptureSettings(
            name=self.name,
            dsn=self.data_source or "",
            kafka=self.kafka,
            consumer=self.consumer,
            mappings=tuple(topic_mapping(topic, given) for topic, given in self.topics.items()),
            schema=self.schema_,
            shards=self.shards,
            batch_records=self.batch_records,
            most_dead_in_a_row=self.most_dead_in_a_row,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfiguration:
    """The complete configuration of a capture."""

    form: CaptureForm
    completed: Completed[CaptureForm]

    @property
    def settings(self) -> CaptureSettings:
        """The settings of the shards."""
        return self.form.settings

    @property
    def election(self) -> ElectionSettings:
        """How this process competes for leadership."""
        return self.form.election_settings(self.form.election, lease_seconds=self.form.lease_seconds)


def load_capture_config(
    path: Path | None,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    warn: Callable[[str], object] = logger.warning,
    rules: Sequence[Rule] = (),
) -> CaptureConfiguration:
    """Read and check a configuration: a file, then the environment, then flags. Raises `ConfigurationInvalid`.

    `rules` are checked in addition to the form's own.
    """
    completed = load(CaptureForm, path, flags, environment, warn=warn, rules=rules)
    return CaptureConfiguration(form=completed.form, completed=completed)


def capture_configured(given: Mapping[str, Any]) -> CaptureConfiguration:
    """Return the checked configuration of a program's keys. Raises `ConfigurationInvalid`."""
    completed = complete(CaptureForm, {str(name): value for name, value in given.items()})
    return CaptureConfiguration(form=completed.form, completed=completed)


def _topics(form: CaptureForm, _: Mapping[str, Any]) -> Iterator[Problem]:
    problems = [problem for topic, given in form.topics.items() for problem in topic_problems(topic, given)]
    yield from problems
    if problems:
        return
    tables = Counter(str(mapping.table) for mapping in form.settings.mappings if mapping.table is not None)
    for mapping in form.settings.mappings:
        if mapping.table is not None and tables[str(mapping.table)] > 1:
            why = "another topic has it too: a row's guard holds the offset of one topic"
            yield f"topics.{mapping.topic}.table", f"{mapping.table}: {why}"


_KAFKA = KafkaSections(
    sections=("kafka", "consumer"),
    guarded=GUARDED,
    guarded_because=lambda _: "the guarantee of capture depends on its own value: leave it out",
    producer=dict,
)
_RULES = (
    Rule(frozenset({"topics"}), _topics),
    election_keys_fit({**OF_ELECTION, "leader_group": ElectionKind.NELI, "lease_seconds": ElectionKind.LEASE}),
    POLLS_IN_TIME,
    *_KAFKA.rules,
)
