"""The configuration of queues: kafka-mq-go's keys, and some of our own. Times are in milliseconds, as in kafka-mq-go.

Each key is declared here once. Its flag, its environment variable and its row in docs/configuration.md are generated
from the declaration. After a change, run `maintenance/configuration_table.py` to update that page.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from thresher.config.form import Form, KafkaProperties, KeptSecrets, Properties, Rule
from thresher.config.kafka_properties import KafkaSections, brokers_of, wrong_servers
from thresher.config.loading import Completed, complete, load
from thresher.config.report import Problem
from thresher.config.setting import DefaultText, Required, Section, Servers
from thresher.kafka.transactional import GUARDED

_TWELVE_HOURS = 43_200_000
_TEN_YEARS = 315_360_000_000
# Properties that the guarantees of queues depend on, in addition to those that transactions depend on.
QUEUE_GUARDED = GUARDED | {
    "partitioner", "group.id", "group.instance.id", "group.protocol", "group.remote.assignor",
    "partition.assignment.strategy", "isolation.level", "enable.auto.commit", "enable.auto.offset.store",
    "auto.commit.interval.ms", "auto.offset.reset", "enable.partition.eof", "message.max.bytes", "error_cb",
    "max.in.flight", "max.in.flight.requests.per.connection", "retries", "message.send.max.retries",
}  # fmt: skip


def _mapping(given: object) -> object:
    if not isinstance(given, Mapping):
        raise ValueError("keys with their values are needed")  # noqa: TRY004 - pydantic reports only ValueError
    return {str(name): value for name, value in given.items()}


class HandOff(enum.StrEnum):
    """The guarantee with which messages are started."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class QueueConfig(Form):
    """Every key of queues. In code the keys have underscores: `QueueConfig(bootstrap_servers=…, message_topic=…)`."""

    model_config = ConfigDict(populate_by_name=True)

    bootstrap_servers: Annotated[str, Servers(brokers_of), Required("where is the broker?")] = Field(
        default="", alias="bootstrap-servers", description="Kafka's brokers, as HOST:PORT[,HOST:PORT…]."
    )
    message_topic: Annotated[str, Required("which topic holds the messages?")] = Field(
        default="", alias="message-topic", description="The topic of the messages of all queues."
    )
    marker_topic: Annotated[str, Required("which topic holds the markers?")] = Field(
        default="",
        alias="marker-topic",
        description="The topic of the markers, which record the progress of each message.",
    )
    redelivery_timeout: int = Field(
        default=60_000,
        ge=10,
        le=_TWELVE_HOURS,
        alias="redelivery-timeout",
        description="Milliseconds after which a message is redelivered if its consumer sends no marker for it. A live "
        "consumer sends a KeepAlive at half of this time.",
    )
    consumer_receive_buffer_capacity: int = Field(
        default=500,
        ge=1,
        le=100_000,
        alias="consumer-receive-buffer-capacity",
        description="The maximum number of messages that are started and wait for the application. No other consumer "
        "gets these messages.",
    )
    consumer_next_message_timeout: int = Field(
        default=1_000,
        ge=1,
        le=60_000,
        alias="consumer-next-message-timeout",
        description="Milliseconds that one poll of a consumer waits for a record.",
    )
    consumer_max_messages_per_commit: int = Field(
        default=1_000,
        ge=1,
        le=1_000_000,
        alias="consumer-max-messages-per-commit",
        description="The number of skipped records of other queues after which offsets are committed.",
    )
    redelivery_tracker: Annotated[KeptSecrets, BeforeValidator(_mapping), Section(), DefaultText("none")] = Field(
        default={},
        alias="redelivery-tracker",
        description="The tracker's own keys. Only 'thresher queue track' reads and checks them: see "
        "[the tracker's keys](#the-trackers-keys).",
    )
    max_deliveries: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        alias="max-deliveries",
        description="The maximum number of deliveries of a message. After the last one, an unacked message becomes a "
        "dead letter.",
    )
    ttl: int | None = Field(
        default=None,
        ge=1,
        le=_TEN_YEARS,
        description="Milliseconds after the start of a message's first delivery during which it can be redelivered. "
        "Later it becomes a dead letter.",
    )
    max_deliveries_by_queue: Annotated[Properties, DefaultText("none")] = Field(
        default={},
        alias="max-deliveries-by-queue",
        description="`max-deliveries` by queue id. A message's own limit overrides both.",
    )
    ttl_by_queue: Annotated[Properties, DefaultText("none")] = Field(
        default={},
        alias="ttl-by-queue",
        description="`ttl` by queue id. A message's own limit overrides both.",
    )
    handoff: HandOff = Field(
        default=HandOff.EXACTLY_ONCE,
        description="How messages are started. `exactly-once` starts each message once, in a transaction. With "
        "`at-least-once`, which is kafka-mq-go's way, a crash may start a message twice.",
    )
    max_in_progress: int = Field(
        default=1_000,
        ge=1,
        le=1_000_000,
        alias="max-in-progress",
        description="The maximum number of a consumer's messages that are started and not settled.",
    )
    max_message_bytes: int = Field(
        default=1_048_576,
        ge=1_000,
        le=100_000_000,
        alias="max-message-bytes",
        description="The maximum size of a message in bytes, uncompressed, including its queue's id and its headers. A "
        "larger message is refused before it is sent; if another program sent it, it becomes a dead letter.",
    )
    send_timeout: int = Field(
        default=30_000,
        ge=100,
        le=900_000,
        alias="send-timeout",
        description="Milliseconds after which an unanswered send fails. The message may or may not be in the queue.",
    )
    kafka: KafkaProperties = Field(
        default={},
        repr=False,
        description="Properties of every Kafka client. The names are librdkafka's: see "
        "[Kafka's properties](#kafkas-properties).",
    )
    producer: KafkaProperties = Field(
        default={}, repr=False, description="Properties of the producers alone, which override `kafka`."
    )
    consumer: KafkaProperties = Field(
        default={}, repr=False, description="Properties of the consumers alone, which override `kafka`."
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers(cls, servers: str) -> str:
        if servers and (why := wrong_servers(servers)):
            raise ValueError(why)
        return servers

    @field_validator("message_topic", "marker_topic")
    @classmethod
    def _topic(cls, topic: str) -> str:
        # The longest topic name derived from it is `<topic>.queues`.
        if topic and (re.fullmatch(r"[a-zA-Z0-9._-]{1,242}", topic) is None or topic in {".", ".."}):
            raise ValueError("1 to 242 of the characters a-z A-Z 0-9 . _ - are needed")
        return topic

    @field_validator("max_deliveries_by_queue", "ttl_by_queue")
    @classmethod
    def _limits(cls, given: dict[str, Any]) -> dict[str, int]:
        for queue, value in given.items():
            if not str(value).isdecimal() or not 1 <= int(value) <= _TEN_YEARS:
                raise ValueError(f"{queue}: a whole number from 1 up is needed, not {value}")
        return {queue: int(value) for queue, value in given.items()}

    @property
    def redelivery_seconds(self) -> float:
        """The redelivery time-out, in seconds."""
        return self.redelivery_timeout / 1000

    @property
    def dead_topic(self) -> str:
        """The topic of the dead letters."""
        return f"{self.message_topic}.dead"

    @property
    def queues_topic(self) -> str:
        """The compacted topic that records where each queue's consumer group began."""
        return f"{self.marker_topic}.queues"

    @property
    def clients(self) -> dict[str, Any]:
        """The properties shared by all clients."""
        return {**self.kafka, "bootstrap.servers": self.bootstrap_servers}

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """The rules that involve several keys."""
        return _RULES


def configured(given: "QueueConfig | Mapping[str, Any]") -> QueueConfig:
    """Return a checked configuration. Contacts no server. Raises `ConfigurationInvalid` with every problem."""
    keys = given.model_dump(by_alias=True, exclude_unset=True) if isinstance(given, QueueConfig) else dict(given)
    # In code, keys have underscores.
    return complete(QueueConfig, {str(name).replace("_", "-"): value for name, value in keys.items()}).form


def load_queue_config(
    path: Path | None, flags: Mapping[str, Any], environment: Mapping[str, str]
) -> Completed[QueueConfig]:
    """Read and check a configuration: a file, then the environment, then flags. Raises `ConfigurationInvalid`."""
    return load(QueueConfig, path, flags, environment)


def _differ(form: QueueConfig, _: Mapping[str, Any]) -> Iterator[Problem]:
    if form.message_topic and form.message_topic == form.marker_topic:
        yield "marker-topic", "it is also the message-topic: markers need a topic of their own"


_KAFKA = KafkaSections(
    sections=("kafka", "producer", "consumer"),
    guarded=QUEUE_GUARDED,
    guarded_because=lambda _: "the guarantee of queues depends on Thresher's value: leave it out",
    producer=dict,
    servers_key="bootstrap-servers",
)
_RULES = (Rule(frozenset({"message-topic", "marker-topic"}), _differ), *_KAFKA.rules)
