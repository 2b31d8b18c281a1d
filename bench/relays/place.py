"""The place of a relay bench: servers, backlogs of rows, and the rate at which rows become readable."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Shape, create_schema
from thresher.testing.pump import Fleet, Plan

OUTBOX = TableName(table="outbox")
PARTITIONS, KEYS, VALUE_BYTES = 4, 1000, 100
WARM_SHARE = 0.2
SAMPLE_SECONDS, PATIENCE_SECONDS = 0.02, 300.0
COLUMNS = "kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One database and one broker, with the settings that all sides share."""

    stack: Stack
    dsn: str
    bootstrap: str
    producer: dict[str, Any]
    shape: Shape = Shape.THRESHER

    @staticmethod
    def of(stack: Stack, producer: dict[str, Any], shape: Shape = Shape.THRESHER) -> "Place":
        """Return a place with a new database and an empty outbox."""
        dsn = stack.postgres.create_database(f"bench_{secrets.token_hex(4)}")
        with psycopg.connect(dsn) as connection:
            create_schema(connection, OUTBOX, shape)
        return Place(stack=stack, dsn=dsn, bootstrap=stack.kafka.bootstrap, producer=producer, shape=shape)

    def client(self) -> dict[str, Any]:
        """Return a plain producer's properties: idempotent with all acks, like the relay's, without transactions."""
        return {"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True, **self.producer}

    def bare(self) -> "Place":
        """Return the same place for another process, without the stack, which cannot be passed on."""
        return replace(self, stack=None)  # type: ignore[arg-type]

    def execute(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Run one statement."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def new_name(self) -> str:
        """Return a name for a relay without progress or term; the control rows of earlier relays are dropped."""
        self.execute("DROP TABLE IF EXISTS thresher_relay")
        self.execute("DROP TABLE IF EXISTS outbox_lock")
        return f"bench-{secrets.token_hex(4)}"

    def new_topics(self, count: int = 1, *, config: Mapping[str, str] | None = None) -> list[str]:
        """Create empty topics."""
        names = [f"bench-{secrets.token_hex(4)}" for _ in range(count)]
        for name in names:
            Admin(self.bootstrap).create_topic(name, partitions=PARTITIONS, config=config)
        return names

    def prepare(self, rows: int, value_bytes: int = VALUE_BYTES) -> str:
        """Let the pump write rows, and copy them to another table; return its name."""
        aside = f"rows_{value_bytes}"
        self.execute("TRUNCATE outbox RESTART IDENTITY")
        plan = Plan(
            dsn=self.dsn, records=rows, keys=KEYS, value_bytes=value_bytes, writers=2, transaction_rows=1000,
            run=secrets.token_hex(4), shape=self.shape,
        )  # fmt: skip
        Fleet(plan).run()
        self.execute(f"DROP TABLE IF EXISTS {aside}")
        self.execute(f"CREATE TABLE {aside} AS SELECT id, {COLUMNS} FROM outbox")  # noqa: S608 - our own names
        return aside

    def fill(self, aside: str, topics: Sequence[str], *, rows: int, key: str | None = None, empty: bool = True) -> None:
        """Fill the outbox with prepared rows, vacuumed and checkpointed; with `key`, all rows have that key."""
        if empty:
            self.execute("TRUNCATE outbox RESTART IDENTITY")
        ((count,),) = self.execute(f"SELECT count(*) FROM {aside}")  # noqa: S608
        own_key = "kafka_key" if key is None else "%(key)s::bytea" if self.shape is Shape.THRESHER else "%(key)s"
        self.execute(
            f"INSERT INTO outbox (create_time, {COLUMNS}) SELECT clock_timestamp(), "  # noqa: S608 - our own names
            f"(%(topics)s::text[])[1 + id %% %(many)s], {own_key}, kafka_value, kafka_header_keys, kafka_header_values "
            f"FROM {aside}, generate_series(1, %(times)s) time ORDER BY time, id LIMIT %(rows)s",
            {"topics": list(topics), "many": len(topics), "key": key, "times": -(-rows // count), "rows": rows},
        )
        self.execute("VACUUM ANALYZE outbox")
        self.execute("CHECKPOINT")

    def drained(self) -> None:
        """Wait until the table is empty: the last published rows are settled."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.execute("SELECT 1 FROM outbox LIMIT 1"):
            if time.monotonic() > deadline:
                raise TimeoutError("rows were left in the table")
            time.sleep(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Rows a second that became readable, and the samples at both ends of that time."""

    per_second: float
    rows: int
    first: Any
    last: Any


class TooFewRows(RuntimeError):  # noqa: N818
    """A backlog was published before its rate could be measured."""


def without_markers(place: Place, topics: Sequence[str], rows: int, watched: Watched) -> Watched:
    """Return a rate of rows alone, once all are there: many topics, or large rows, have many transaction markers."""
    client = AdminClient({"bootstrap.servers": place.bootstrap})
    share = rows / sum(readable(client, topics))
    return replace(watched, per_second=watched.per_second * share)


def readable(
    client: AdminClient, topics: Sequence[str], level: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> Iterator[int]:
    """Return the end offset of each partition at this isolation level."""
    places = {TopicPartition(topic, part): OffsetSpec.latest() for topic in topics for part in range(PARTITIONS)}
    answers = client.list_offsets(places, isolation_level=level, request_timeout=10)
    return (answer.result().offset for answer in answers.values())


def tally(place: Place, topics: Sequence[str], rows: int, *, warm_share: float = WARM_SHARE) -> Watched:
    """Measure by reading the rows: with one row per transaction, half of the offsets would be transaction markers."""
    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": "bench-tally",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for topic in topics for part in range(PARTITIONS)])
    deadline = time.monotonic() + PATIENCE_SECONDS
    began: tuple[float, int] | None = None
    count = 0
    try:
        while time.monotonic() < deadline:
            count += sum(message.error() is None for message in consumer.consume(1_000, SAMPLE_SECONDS))
            now = time.monotonic()
            if began is None and count >= max(1, warm_share * rows):
                began = (now, count)
            elif began is not None and count >= rows:
                counted = count - began[1]
                return Watched(per_second=counted / (now - began[0]), rows=counted, first=None, last=None)
    finally:
        consumer.close()
    raise TimeoutError(f"the rows did not arrive in {PATIENCE_SECONDS:g} s")


def watch(
    place: Place,
    topics: Sequence[str],
    rows: int,
    *,
    warm_share: float = WARM_SHARE,
    committed: bool = True,
    sample: Callable[[], Any] = lambda: None,
) -> Watched:
    """Measure the rate at which rows become readable, from the end of the warm-up to the last row.

    Offsets also count transaction markers: a few for each ten thousand rows. For more, see `without_markers`.
    """
    client = AdminClient({"bootstrap.servers": place.bootstrap})
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    deadline = time.monotonic() + PATIENCE_SECONDS
    began: tuple[float, int, Any] | None = None
    while time.monotonic() < deadline:
        there = sum(readable(client, topics, level))
        now = time.monotonic()
        if began is None and there >= rows:
            raise TooFewRows(f"all {rows:,} rows were there at the first look: measure with more --rows")
        if began is None and there >= max(1, warm_share * rows):
            began = (now, there, sample())
        elif began is not None and there >= rows:
            count = there - began[1]
            return Watched(per_second=count / (now - began[0]), rows=count, first=began[2], last=sample())
        time.sleep(SAMPLE_SECONDS)
    raise TimeoutError(f"the rows did not arrive in {PATIENCE_SECONDS:g} s")
