"""A relay in the test process, on the run's Spark, and the values that tests look at."""

import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Self

import psycopg
from confluent_kafka import Consumer, Message, TopicPartition
from psycopg.rows import tuple_row

from tests.processes import alive, eventually
from thresher.core.errors import ThresherError
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Outbox, Shape, create_schema
from thresher.relay.leader.take_over import take_over
from thresher.relay.leader.workload import RelayWorkload
from thresher.relay.settings import Limits, Settings, ShardAssignment
from thresher.relay.store import store_of
from thresher.service.leading import Leading
from thresher.service.workload import Workload
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.policy import Policy

# Seen: a relay is up 1.2 s after its start, and a row arrives a few milliseconds later. A commit that a stall delays is
# uncertain: the shard starts over, which takes as long again, perhaps more than once.
RELAYED_SECONDS = 60.0
# A stall of the machine does not make workers count as dead.
POLICY = Policy(
    beat_seconds=0.2, back_off_most_seconds=2.0, healthy_seconds=10.0, silence_seconds=15.0, deaf_seconds=30.0
)
# An idle shard looks for rows less often than by default: a test's relay is idle for most of its time.
POLL_SECONDS = 0.05


class Relaying:
    """Runs a relay in a thread; leaving stops the relay and raises its error, unless the test has looked at it."""

    def __init__(
        self, settings: Settings | Workload, *, policy: Policy | None = None, hook: str | None = None, **options: Any
    ) -> None:
        workload = RelayWorkload(settings, policy=policy, hook=hook) if isinstance(settings, Settings) else settings
        self.relay = Leading(workload, **options)
        self.error: BaseException | None = None
        self.looked_at = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.relay.run()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.relay.request_stop()
        self._thread.join(60)
        if self._thread.is_alive():
            self.relay.kill()
            self._thread.join(30)
        if not self.looked_at and self.error is not None:
            # The relay's error explains more than the condition that was not met because of it.
            raise self.error

    @property
    def shards(self) -> tuple[ShardSnapshot, ...]:
        snapshot = self.relay.snapshot()
        return snapshot.shards if snapshot is not None else ()

    def ended(self, seconds: float = 120) -> BaseException | None:
        """Wait for the relay's end, and return its error."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the relay goes on"
        self.looked_at = True
        return self.error

    def total(self, name: str) -> float:
        return sum(shard.counts.get(name, 0) for shard in self.shards)

    @property
    def up(self) -> bool:
        """Whether all shards have recovered."""
        shards = self.shards
        return bool(shards) and all(shard.gauges.get("relaying") for shard in shards)

    def pid(self, shard: int) -> int:
        """Wait for the live process that serves the shard, and return its id: between two attempts there is none."""
        found: list[int] = []

        def there() -> bool:
            found[:] = [each.pid for each in self.shards if each.shard == shard and each.pid and alive(each.pid)]
            return bool(found)

        self.until(there)
        return found[0]

    def errors(self) -> Counter[str]:
        """Return the errors by kind, without commits that took too long, which any stall may cause."""
        found: Counter[str] = Counter()
        for shard in self.shards:
            for name, count in shard.counts.items():
                if name.startswith("errors.") and name != "errors.commit_unknown":
                    found[name] += int(count)
        return found

    def sent(self) -> float:
        """The number of rows that were sent. Rows of a commit in doubt are counted when recovery has found them."""
        return self.total("relayed") + self.total("recovered")

    def undisturbed(self) -> None:
        """Check that no shard had to start over, except because a new topic had no leader yet."""
        for shard in self.shards:
            assert shard.restarts == 0 or "did not return the partitions of" in (shard.last_error or ""), shard

    def until(self, condition: Callable[[], object], seconds: float = RELAYED_SECONDS) -> None:
        def met() -> object:
            if self.error is not None:
                raise self.error
            return condition()

        eventually(met, seconds, lambda: f"not met: {self.relay.snapshot()}")


class Asking:
    """Queries over one connection that is kept: a test that waits asks often, and a connection costs 15 ms."""

    dsn: str
    _kept: tuple[str, psycopg.Connection[Any]] | None = None

    def ask(self, query: str, *, row_factory: Any = tuple_row) -> list[Any]:
        """Return the answer to a query without side effects. It is asked again if the connection was lost."""

        def answer(connection: psycopg.Connection[Any]) -> list[Any]:
            return connection.cursor(row_factory=row_factory).execute(query.encode()).fetchall()

        if self._kept is not None and self._kept[0] == self.dsn:
            with contextlib.suppress(psycopg.OperationalError):
                return answer(self._kept[1])
        opened = psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None)
        weakref.finalize(self, opened.close)
        if self._kept is not None:
            self._kept[1].close()
        self._kept = (self.dsn, opened)
        return answer(opened)


class Place(Asking):
    """An outbox in a database, and topics under a prefix, both of one test."""

    def __init__(
        self,
        stack: Stack,
        dsn: str,
        prefix: str,
        *,
        shape: Shape = Shape.THRESHER,
        table: str = "outbox",
        partitions: int = 3,
    ) -> None:
        """`partitions`: those of the topic; with 0 there is no topic, for tests without a broker."""
        self.stack, self.dsn, self.prefix, self.shape = stack, dsn, prefix, shape
        self.table = TableName(table=table)
        self.outbox = Outbox(table, shape=shape)
        self.topic = f"{prefix}orders"
        self.admin = Admin(stack.kafka.bootstrap)
        with psycopg.connect(dsn) as connection:
            create_schema(connection, self.table, shape)
        if partitions:
            self.admin.create_topic(self.topic, partitions=partitions)

    def settings(self, **changes: Any) -> Settings:
        limits = {"poll_seconds": POLL_SECONDS, **changes.pop("limits", {})}
        values: dict[str, Any] = {
            "name": f"{self.prefix}relay",
            "dsn": self.dsn,
            "outbox": self.table,
            "shape": self.shape,
            "kafka": {"bootstrap.servers": self.stack.kafka.bootstrap},
            "limits": Limits(**limits),
            **changes,
        }
        return Settings(**values)

    def relaying(self, **changes: Any) -> Relaying:
        options = {name: changes.pop(name) for name in ("hook", "policy", "spark", "announce") if name in changes}
        options.setdefault("policy", POLICY)
        return Relaying(self.settings(**changes), **options)

    def stash(self, *messages: Any) -> None:
        with psycopg.connect(self.dsn) as connection:
            self.outbox.stash_many(connection, messages)

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def pending(self) -> int:
        where = " WHERE dispatched_time IS NULL" if self.shape is Shape.THRESHER else ""
        return int(self.ask(f"SELECT count(*) FROM {self.table}{where}")[0][0])

    def dead(self) -> list[tuple[Any, ...]]:
        return self.ask(f"SELECT id, kind, reason, attempts, blocking FROM {self.table.companion('_dead')} ORDER BY id")

    def read(self, count: int, *topics: str, seconds: float = RELAYED_SECONDS) -> list[Message]:
        """Read committed records until there are `count`, and check that there are no more."""
        return read_committed(self.stack.kafka.bootstrap, topics or (self.topic,), count, seconds)


def tables_created(settings: Settings) -> Settings:
    """Create the tables that a take-over creates, for a reader without a broker, and return the settings."""
    with closing(store_of(settings).session("tests", locate=True)) as session:
        session.create_tables()
    return settings


def taken_over(settings: Settings) -> ShardAssignment:
    """Take over as a relay does: an error that time may cure, such as a new topic, is retried."""
    return tried_again(lambda: take_over(settings))


def tried_again(begin: Callable[[], ShardAssignment | None]) -> ShardAssignment:
    """Begin as a service does, and return the result: an error that time may cure is retried."""
    deadline = time.monotonic() + RELAYED_SECONDS
    while True:
        try:
            assignment = begin()
        except ThresherError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            assert assignment is not None
            return assignment


def read_committed(
    bootstrap: str, topics: Sequence[str], count: int, seconds: float = RELAYED_SECONDS
) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
        }
    )
    messages: list[Message] = []
    places: list[TopicPartition] = []

    def known() -> bool:
        """Whether the broker knows all topics: one of them may be new."""
        found = consumer.list_topics(timeout=30).topics
        places[:] = [
            TopicPartition(topic, partition, 0)
            for topic in topics
            for partition in (found[topic].partitions if topic in found else ())
        ]
        return {place.topic for place in places} == set(topics)

    try:
        eventually(known, seconds, lambda: f"the broker does not know all of {topics}")
        consumer.assign(places)
        deadline = time.monotonic() + seconds
        quiet = None
        while time.monotonic() < deadline and (quiet is None or time.monotonic() - quiet < 0.25):
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    messages.append(message)
                    quiet = None
            if len(messages) >= count and quiet is None:
                quiet = time.monotonic()
        assert len(messages) == count, f"{len(messages)} records, {count} were expected"
        return messages
    finally:
        consumer.close()
