"""The settings of a capture, which are sent to its shards: servers, topics, tables and bounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.capture.rows.mapping import TopicMapping
from thresher.capture.store.tables import CaptureTables
from thresher.core.secrets import SecretText, kept_properties
from thresher.db.postgres.dsn import kept_dsn
from thresher.spark.policy import Policy

POLICY = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """One capture: its topics, and how their records are applied to one database."""

    name: str
    # Secrets are kept as `Secret`.
    dsn: SecretText
    kafka: Mapping[str, Any] = field(repr=False)
    consumer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    mappings: tuple[TopicMapping, ...]
    # The schema of capture's own tables.
    schema: str | None = None
    shards: int = 1
    batch_records: int = 5_000
    # 0: no limit.
    most_dead_in_a_row: int = 100

    def __post_init__(self) -> None:
        # A frozen dataclass can set its fields in no other way.
        object.__setattr__(self, "dsn", kept_dsn(self.dsn))
        for section in ("kafka", "consumer"):
            object.__setattr__(self, section, kept_properties(getattr(self, section)))

    @property
    def tables(self) -> CaptureTables:
        """Capture's own tables."""
        return CaptureTables(schema=self.schema)

    @property
    def lease(self) -> str:
        """The name of the capture in an election. A relay's lease may have the capture's own name."""
        return f"{self.name}.capture"

    @property
    def topics(self) -> tuple[str, ...]:
        """The captured topics."""
        return tuple(each.topic for each in self.mappings)

    @property
    def functions(self) -> tuple[str, ...]:
        """The paths of handlers and decoders."""
        return tuple(path for each in self.mappings for path in (each.handler, each.decoder) if path)

    @property
    def reader(self) -> Mapping[str, Any]:
        """The properties of its consumers."""
        return {**self.kafka, **self.consumer}


def owned(partition: int, shard: int, shards: int) -> bool:
    """Whether a shard reads this partition. The same for every topic."""
    return partition % shards == shard
