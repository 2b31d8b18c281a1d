"""What the relay costs beside a plain program that does the same with less: throughput on a backlog, latency of a row.

Throughput: a backlog is relayed, in turns with the ceiling, a plain loop of one process per shard that copies the same
rows with no guarantee; what a reader of committed records could have read is sampled from the broker, from the end of
the warm-up to the last row; medians of the rounds. Latency: rows are committed at random times, one a transaction, and
a reader of committed records notes their arrival; in turns with the floor, one plain loop that polls every millisecond.
All on one machine and one monotonic clock. The last line printed is one JSON object.
"""

import argparse
import json
import logging
import multiprocessing
import random
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import adbc_driver_postgresql.dbapi
import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from rich.console import Console
from rich.table import Table

from thresher.db import TableName
from thresher.db.arrays import bigint_array
from thresher.db.cursor import BigintArray, OwnCursor
from thresher.devstack.postgres import PostgresOptions
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Outbox, create_schema
from thresher.relay.names import buckets_of
from thresher.relay.relay import Relay
from thresher.relay.settings import Limits, Settings
from thresher.testing.history import IDENTITY_HEADER, identity
from thresher.testing.pump import Fleet, Plan

NAME = TableName(table="outbox")
SHARDS, PARTITIONS, KEYS, VALUE_BYTES = 2, 4, 1000, 100
BATCH_ROWS = Limits().batch_rows
WARM_SHARE, WARM_SECONDS = 0.2, 2.0
PER_SECOND = 20
SAMPLE_SECONDS, PATIENCE_SECONDS = 0.02, 120.0
COLUMNS = "id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
CONTEXT = multiprocessing.get_context("spawn")
Line = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where everything is, and what both sides are told."""

    dsn: str
    bootstrap: str
    producer: dict[str, Any]

    def settings(self) -> Settings:
        """Return a relay of its own: a new name has neither progress nor a term."""
        return Settings(
            name=f"bench-{secrets.token_hex(4)}", dsn=self.dsn, outbox=NAME, shards=SHARDS, producer=self.producer,
            kafka={"bootstrap.servers": self.bootstrap},
        )  # fmt: skip

    def client(self) -> dict[str, Any]:
        """Return what a plain producer is told: as safe as the relay's on the wire, without transactions."""
        return {"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True, **self.producer}


@contextmanager
def relaying(bench: Bench, _topic: str) -> Iterator[None]:
    """Run a relay meanwhile; what ends it early is raised at the end."""
    relay = Relay(bench.settings())
    failures: list[Exception] = []

    def run() -> None:
        try:
            relay.run()
        except Exception as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=run, name="bench-relay")
    thread.start()
    try:
        yield
    finally:
        relay.request_stop()
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Iterator[Line]:
    """Run a function in a process of its own, and wait until it is ready; it ends when its line is closed."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield ours
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()


# Throughput


@contextmanager
def copying(bench: Bench, topic: str) -> Iterator[None]:
    """Run the ceiling meanwhile."""
    copiers = [
        CONTEXT.Process(target=copy, args=(bench, topic, buckets_of(shard, SHARDS)), daemon=True)
        for shard in range(SHARDS)
    ]
    for copier in copiers:
        copier.start()
    try:
        yield
    finally:
        for copier in copiers:
            copier.join(10)
            if copier.is_alive():
                copier.kill()


def copy(bench: Bench, topic: str, buckets: list[int]) -> None:
    """Copy the rows of some buckets until none is left: read, send, wait, delete. A crash would repeat rows."""
    producer = Producer(bench.client())
    options = "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off -c max_parallel_workers_per_gather=0"
    dsn = psycopg.conninfo.make_conninfo(bench.dsn, options=options)
    array = "{" + ",".join(map(str, buckets)) + "}"
    head = (
        f"SELECT {COLUMNS} FROM outbox WHERE bucket = ANY ('{array}'::smallint[]) AND dispatched_time IS NULL "  # noqa: S608
        f"ORDER BY bucket, id LIMIT {BATCH_ROWS}"
    )
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        adbc_driver_postgresql.dbapi.connect(dsn, autocommit=True) as arrow,
        arrow.cursor() as cursor,
    ):
        deleting = OwnCursor(connection)
        while True:
            cursor.execute(head)
            table = cursor.fetch_arrow_table()
            if not table.num_rows:
                return
            ids, topics, *fields = (column.to_pylist() for column in table.columns)
            for _, key, value, names, values in zip(topics, *fields, strict=True):
                producer.produce(topic, value, key, headers=list(zip(names, values, strict=True)))
            if producer.flush(PATIENCE_SECONDS):
                raise TimeoutError("the broker did not take the records")
            deleting.execute("DELETE FROM outbox WHERE id = ANY (%s)", [BigintArray(bigint_array(ids))], prepare=True)


def fill(bench: Bench, topic: str) -> None:
    """Make the table a fresh backlog: the same rows each time, as if long written."""
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE outbox RESTART IDENTITY")
        connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
            "SELECT %s, kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM backlog ORDER BY id",
            [topic],
        )
        connection.execute("VACUUM ANALYZE outbox")
        connection.execute("CHECKPOINT")


def prepare(bench: Bench, rows: int) -> None:
    """Have the pump write the backlog once, aside."""
    plan = Plan(
        dsn=bench.dsn, records=rows, keys=KEYS, value_bytes=VALUE_BYTES, writers=2, transaction_rows=1000,
        run=secrets.token_hex(4),
    )  # fmt: skip
    Fleet(plan).run()
    with psycopg.connect(bench.dsn) as connection:
        connection.execute(f"CREATE TABLE backlog AS SELECT {COLUMNS} FROM outbox")  # noqa: S608 - our own names


def watched(bench: Bench, topic: str, rows: int) -> float:
    """Return how many rows a second became readable between the end of the warm-up and the last row.

    Offsets also count the markers that end transactions, a few for each ten thousand rows.
    """
    client = AdminClient({"bootstrap.servers": bench.bootstrap})
    places = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    deadline = time.monotonic() + PATIENCE_SECONDS
    first: tuple[float, int] | None = None
    while time.monotonic() < deadline:
        answers = client.list_offsets(places, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=10)
        readable = sum(answer.result().offset for answer in answers.values())
        now = time.monotonic()
        if first is None and readable >= WARM_SHARE * rows:
            first = (now, readable)
        if first is not None and readable >= rows:
            return (rows - first[1]) / (now - first[0])
        time.sleep(SAMPLE_SECONDS)
    raise TimeoutError(f"{topic}: the rows did not arrive in {PATIENCE_SECONDS:g} s")


def drained(bench: Bench) -> None:
    """Wait until the table is empty: what was published last is settled."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        while connection.execute("SELECT FROM outbox LIMIT 1").fetchone() is not None:
            if time.monotonic() > deadline:
                raise TimeoutError("rows were left in the table")
            time.sleep(0.1)


def throughput(bench: Bench, rows: int, rounds: int) -> dict[str, float]:
    prepare(bench, rows)
    rates: dict[str, list[float]] = {"rec_per_s": [], "ceiling_rec_per_s": []}
    sides = list(zip(rates, (relaying, copying), strict=True))
    for number in range(rounds):
        # Each goes first in every other round, so that neither always follows the other's traces.
        for name, side in sides[:: -1 if number % 2 else 1]:
            topic = new_topic(bench)
            fill(bench, topic)
            with side(bench, topic):
                rates[name].append(watched(bench, topic, rows))
                drained(bench)
    figures = {name: statistics.median(each) for name, each in rates.items()}
    return {**figures, "vs_ceiling": figures["rec_per_s"] / figures["ceiling_rec_per_s"]}


# Latency


@contextmanager
def polling(bench: Bench, topic: str) -> Iterator[None]:
    """Run the floor meanwhile."""
    with running(poll, bench, topic):
        yield


def poll(bench: Bench, topic: str, line: Line) -> None:
    """Look every millisecond; publish what is there in a transaction of Kafka, then delete it."""
    producer = Producer({**bench.client(), "transactional.id": f"floor-{topic}"})
    producer.init_transactions()
    head = f"SELECT {COLUMNS} FROM outbox WHERE dispatched_time IS NULL ORDER BY id LIMIT 100"  # noqa: S608
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        cursor = OwnCursor(connection)
        cursor.format = psycopg.pq.Format.BINARY
        line.send("ready")
        while not line.poll(0.001):
            rows = cursor.execute(head, prepare=True).fetchall()
            if not rows:
                continue
            producer.begin_transaction()
            for _, _, key, value, names, values in rows:
                producer.produce(topic, value, key, headers=list(zip(names, values, strict=True)))
            producer.commit_transaction()
            ids = BigintArray(bigint_array([row[0] for row in rows]))
            cursor.execute("DELETE FROM outbox WHERE id = ANY (%s)", [ids], prepare=True)


def arrivals(seconds: float) -> list[tuple[float, str]]:
    """Return when to commit a row, from the start, and its key: the same each time."""
    draw = random.Random(1)
    times: list[tuple[float, str]] = []
    moment = draw.expovariate(PER_SECOND)
    while moment < seconds:
        times.append((moment, f"key-{draw.randrange(KEYS):x}"))
        moment += draw.expovariate(PER_SECOND)
    return times


def write(bench: Bench, topic: str, writer: int, rows: Sequence[tuple[float, str]], line: Line) -> None:
    """Commit each row at its time; tell when each commit returned."""
    plan = Plan(dsn=bench.dsn, records=1, keys=KEYS, topic=topic, value_bytes=VALUE_BYTES, run="latency")
    outbox = Outbox("outbox")
    committed: dict[bytes, int] = {}
    with psycopg.connect(bench.dsn) as connection:
        line.send("ready")
        line.recv()
        start = time.monotonic()
        for number, (moment, key) in enumerate(rows):
            mark = identity("latency", writer, number).encode()
            time.sleep(max(0.0, start + moment - time.monotonic()))
            outbox.stash(connection, plan.message(mark, key))
            connection.commit()
            committed[mark] = time.monotonic_ns()
        line.send(committed)


def read(bench: Bench, topic: str, count: int, line: Line) -> None:
    """Note when each record arrives at a reader of committed records; tell when all have."""
    consumer = Consumer(
        {
            "bootstrap.servers": bench.bootstrap,
            "group.id": f"bench-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    consumer.poll(1.0)
    line.send("ready")
    arrived: dict[bytes, int] = {}
    while len(arrived) < count and not line.poll():
        message = consumer.poll(0.5)
        now = time.monotonic_ns()
        if message is None:
            continue
        if message.error() is not None:
            raise KafkaException(message.error())
        mark = dict(message.headers() or [])[IDENTITY_HEADER]
        if isinstance(mark, bytes):
            arrived.setdefault(mark, now)
    line.send(arrived)
    consumer.close()


def latencies(bench: Bench, side: Callable[[Bench, str], Any], seconds: float) -> list[float]:
    """Return the milliseconds from commit to arrival, of rows committed after the warm-up."""
    topic = new_topic(bench)
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE outbox RESTART IDENTITY")
    rows = arrivals(WARM_SECONDS + seconds)
    with (
        running(read, bench, topic, len(rows) + 1) as reader,
        running(write, bench, topic, 0, [(0.0, "first")]) as first,
        running(write, bench, topic, 1, rows) as writer,
        side(bench, topic),
    ):
        first.send("go")
        first.recv()
        drained(bench)  # it is up
        writer.send("go")
        committed = received(writer, WARM_SECONDS + seconds)
        arrived = received(reader, 0)
    start = min(committed.values())
    return [(arrived[mark] - at) / 1e6 for mark, at in committed.items() if at - start >= WARM_SECONDS * 1e9]


def received(line: "Connection[Any, Any]", seconds: float) -> dict[bytes, int]:
    if not line.poll(seconds + PATIENCE_SECONDS):
        raise TimeoutError("the rows did not arrive")
    answer: dict[bytes, int] = line.recv()
    return answer


def latency(bench: Bench, seconds: float) -> dict[str, float]:
    floor = latencies(bench, polling, seconds)
    ours = latencies(bench, relaying, seconds)
    cuts = statistics.quantiles(ours, n=100, method="inclusive")
    p50, floor_p50 = cuts[49], statistics.median(floor)
    return {
        "p50_ms": p50, "p95_ms": cuts[94], "p99_ms": cuts[98], "floor_p50_ms": floor_p50,
        "p50_vs_floor": p50 / floor_p50,
    }  # fmt: skip


def new_topic(bench: Bench) -> str:
    topic = f"bench-{secrets.token_hex(4)}"
    Admin(bench.bootstrap).create_topic(topic, partitions=PARTITIONS)
    return topic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of fewer rows, and less time at random")
    parser.add_argument("--rows", type=int, help="rows of the backlog")
    parser.add_argument("--rounds", type=int, help="measurements of throughput, of each side")
    parser.add_argument("--seconds", type=float, help="how long rows come at random times, after the warm-up")
    parser.add_argument("--linger-ms", type=float, default=0)
    parser.add_argument("--compression", default="lz4")
    parser.add_argument("--only", choices=["throughput", "latency"])
    options = parser.parse_args()
    rows = options.rows or (250_000 if options.quick else 300_000)
    rounds = options.rounds or (1 if options.quick else 3)
    seconds = options.seconds or (10.0 if options.quick else 30.0)
    logging.disable(logging.WARNING)  # a relay per round says so each time
    figures: dict[str, float] = {}
    with Stack(postgres=PostgresOptions(durable=True)) as stack:
        bench = Bench(
            dsn=stack.postgres.create_database("bench"),
            bootstrap=stack.kafka.bootstrap,
            producer={"linger.ms": options.linger_ms, "compression.type": options.compression},
        )
        with psycopg.connect(bench.dsn) as connection:
            create_schema(connection, NAME)
        if options.only != "latency":
            figures |= throughput(bench, rows, rounds)
        if options.only != "throughput":
            figures |= latency(bench, seconds)
    table = Table("figure", "value", "wanted", title="relay, exactly-once; durable Postgres 18, one broker")
    wanted = {"vs_ceiling": "≥ 0.8", "p50_vs_floor": "≤ 1.5"}
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}" if value < 1000 else f"{value:,.0f}", wanted.get(name, ""))
    console = Console()
    console.print(table)
    console.print(
        f"{rows:,} rows, {VALUE_BYTES}-byte values, one header, {KEYS:,} keys, 1 topic, {PARTITIONS} partitions, "
        f"{SHARDS} shards, {BATCH_ROWS:,} rows a batch, warm-up {WARM_SHARE:.0%} of the rows, {rounds} rounds; "
        f"latency at {PER_SECOND} rows/s for {seconds:g} s after {WARM_SECONDS:g} s; "
        f"linger {options.linger_ms:g} ms, compression {options.compression}, acks all",
        soft_wrap=True,
        highlight=False,
    )
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
