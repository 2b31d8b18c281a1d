"""A tail in the test process, on the run's Spark, and the values that tests look at."""

import itertools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from confluent_kafka import Message

from tests.processes import eventually
from tests.relay.relaying import POLICY, POLL_SECONDS, RELAYED_SECONDS, Asking, Relaying, read_committed
from tests.tail.logged import close_server_functions
from thresher.db import TableName
from thresher.db.log_slots import LogSlot
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import connect_as_configured
from thresher.db.shape import Shape
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Outbox, create_schema
from thresher.relay.settings import Limits, Settings
from thresher.spark.policy import Policy
from thresher.tail.leader.workload import TailWorkload
from thresher.tail.log_source import LogSource, Source, TableSource
from thresher.tail.settings import TailLimits, TailSettings, Via
from thresher.tail.slot import create_slot

_NUMBERS = itertools.count(1)


class Tailing(Relaying):
    """Runs a tail in a thread; leaving stops the tail and raises its error, unless the test has looked at it."""

    def __init__(
        self, settings: TailSettings, *, policy: Policy | None = None, hook: str | None = None, **options: Any
    ) -> None:
        workload: Any = TailWorkload(settings, policy=policy, hook=hook)
        super().__init__(workload, policy=policy, hook=hook, **options)


class TailPlace(Asking):
    """An outbox in a database, with a slot, and topics under a prefix, all of one test."""

    def __init__(
        self, stack: Stack, dsn: str, prefix: str, via: Via = Via.TABLE, shape: Shape = Shape.THRESHER
    ) -> None:
        self.stack, self.dsn, self.prefix, self.via, self.shape = stack, dsn, prefix, via, shape
        self.table = TableName(table="outbox", schema="public")
        self.slot = f"tail_{os.getpid()}_{next(_NUMBERS)}"
        self.outbox = Outbox("outbox", shape=shape) if via is Via.TABLE else Outbox("outbox", via="log", slot=self.slot)
        self.topic = f"{prefix}orders"
        self.admin = Admin(stack.kafka.bootstrap)
        if via is Via.TABLE:
            with psycopg.connect(dsn) as connection:
                create_schema(connection, self.table, shape)
        self.create_slot()
        self.admin.create_topic(self.topic, partitions=3)

    @property
    def source(self) -> Source:
        if self.via is Via.TABLE:
            return TableSource(table=self.table, shape=self.shape)
        return LogSource(outbox=TableName(table="outbox"))

    @contextmanager
    def slots(self) -> Iterator[PostgresSlots]:
        with closing(connect_as_configured(self.dsn, "observer")) as connection:
            yield PostgresSlots(connection)

    def create_slot(self) -> None:
        with self.slots() as slots:
            create_slot(slots, self.slot, self.slot, self.source)
        if isinstance(self.source, LogSource):
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                close_server_functions(connection, self.source.outbox)

    def found_slot(self) -> LogSlot | None:
        with self.slots() as slots:
            return slots.slot(self.slot)

    def settings(self, **changes: Any) -> TailSettings:
        values: dict[str, Any] = {
            "name": f"{self.prefix}tail",
            "dsn": self.dsn,
            "outbox": TableName(table="outbox"),
            "shape": self.shape,
            "via": self.via,
            "slot": self.slot,
            "kafka": {"bootstrap.servers": self.stack.kafka.bootstrap},
            "limits": TailLimits(**changes.pop("limits", {})),
            **changes,
        }
        return TailSettings(**values)

    def tailing(self, **changes: Any) -> Tailing:
        options = {name: changes.pop(name) for name in ("hook", "policy", "spark", "announce") if name in changes}
        options.setdefault("policy", POLICY)
        return Tailing(self.settings(**changes), **options)

    def relay_settings(self) -> Settings:
        """Return the settings of a relay of the same outbox, under the same name."""
        tail = self.settings()
        limits = Limits(poll_seconds=POLL_SECONDS)
        return Settings(name=tail.name, dsn=tail.dsn, outbox=tail.outbox, kafka=tail.kafka, shards=1, limits=limits)

    def relaying(self, settings: Settings) -> Relaying:
        return Relaying(settings, policy=POLICY)

    def pending(self) -> int:
        return int(self.ask("SELECT count(*) FROM outbox")[0][0])

    def stash(self, *messages: Any) -> None:
        with psycopg.connect(self.dsn) as connection:
            self.outbox.stash_many(connection, messages)

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def dead(self) -> list[tuple[Any, ...]]:
        return self.ask("SELECT id, kind, reason, kafka_topic, kafka_value FROM outbox_dead ORDER BY id")

    def read(self, count: int, *topics: str, seconds: float = RELAYED_SECONDS) -> list[Message]:
        """Read committed records until there are `count`, and check that there are no more."""
        return read_committed(self.stack.kafka.bootstrap, topics or (self.topic,), count, seconds)

    def drop_slot(self) -> None:
        """Drop the slot, which would outlive the test's database."""

        def gone() -> bool:
            with self.slots() as slots:
                slots.free(self.slot)
            self.sql(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE slot_name = %s AND NOT active",
                self.slot,
            )
            return self.found_slot() is None

        eventually(gone, 20, lambda: f"slot {self.slot} is there")
