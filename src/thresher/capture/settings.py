"""The settings of a capture, which are sent to its shards: servers, topics, tables and bounds."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg import Connection

from thresher.capture.rows.mapping import TopicMapping
from thresher.capture.store.tables import CaptureTables
from thresher.core.secrets import SecretText, kept_properties
from thresher.db.names import TableName
from thresher.db.postgres.dsn import kept_dsn
from thresher.db.postgres.sessions import connect_as_configured, placed, search_path
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
    # The search_path with which handlers run: that of the role or the connection string. None: it was not looked up.
    handlers_path: str | None = None
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


def placed_settings(settings: CaptureSettings, application: str) -> CaptureSettings:
    """Return the settings with the schema of every table. Raises `DatabaseRefused` or `DatabaseLost`.

    Names without a schema are looked up by the search_path of the role or the connection string. Sessions of ours have
    another one, by which they find no table; handlers get the first.
    """
    handled = settings.handlers_path is None and any(each.handler is not None for each in settings.mappings)
    if not handled and all(each.schema is not None for each in _tables(settings)):
        return settings
    with closing(connect_as_configured(settings.dsn, application)) as connection:
        return settings_placed_by(connection, settings)


def settings_placed_by(connection: Connection[Any], settings: CaptureSettings) -> CaptureSettings:
    """Return the settings with the schema of every table, by the search_path of this session."""
    own, *others = placed(connection, *_tables(settings))
    found = iter(others)
    mappings = tuple(each if each.table is None else replace(each, table=next(found)) for each in settings.mappings)
    return replace(settings, schema=own.schema, mappings=mappings, handlers_path=search_path(connection))


def _tables(settings: CaptureSettings) -> list[TableName]:
    return [settings.tables.offsets, *(each.table for each in settings.mappings if each.table is not None)]


def owned(partition: int, shard: int, shards: int) -> bool:
    """Whether a shard reads this partition. The same for every topic."""
    return partition % shards == shard
