"""The time of a row from its commit to a reader of committed records, when single rows come at random times.

The floor is one plain loop that polls every millisecond, publishes the rows in a Kafka transaction, and deletes them.
Everything runs on one machine with one monotonic clock. A row is hindered if a processor stalled within twice the
median latency after its commit. That time is the same for all rows: slowness alone does not make a row hindered.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from bench.measuring.apart import Line, running
from bench.measuring.cpu_stalls import measuring_stalls
from bench.relays.place import COLUMNS, KEYS, PARTITIONS, PATIENCE_SECONDS, VALUE_BYTES, Place
from thresher.db.postgres.arrays import bigint_array
from thresher.db.postgres.cursor import BigintArray, OwnCursor
from thresher.outbox import Outbox
from thresher.testing.history import IDENTITY_HEADER, identity
from thresher.testing.pump import Plan

PER_SECOND, WARM_SECONDS = 20, 3.0
Side = Callable[[str], AbstractContextManager[Any]]


class Way(NamedTuple):
    """A row's latency from its commit to its arrival; hindered or not, or None if stalls are not known."""

    milliseconds: float
    hindered: bool | None


def latencies(
    place: Place,
    side: Side,
    seconds: float,
    up: Callable[[str], None] | None = None,
    noise: Callable[[str], None] | None = None,
) -> list[Way]:
    """Return the latencies of rows that were committed after the warm-up.

    `up` waits until the side has published the first row, to this topic; by default, until the table is empty. `noise`
    is called once, at the end of the warm-up.
    """
    (topic,) = place.new_topics()
    place.execute("TRUNCATE outbox RESTART IDENTITY")
    rows = arrivals(WARM_SECONDS + seconds)
    bare = place.bare()
    with (
        running(read, bare, topic, len(rows) + 1) as reader,
        running(write, bare, topic, 0, [(0.0, "first")]) as first,
        running(write, bare, topic, 1, rows) as writer,
        side(topic),
        measuring_stalls() as cpu_stalls,
    ):
        first.send("go")
        first.recv()
        if up is None:
            place.drained()
        else:
            up(topic)
        writer.send("go")
        if noise is not None:
            time.sleep(WARM_SECONDS)
            noise(topic)
        committed = received(writer, WARM_SECONDS + seconds)
        arrived = received(reader, 0)
    start = min(committed.values())
    counted = {mark: at for mark, at in committed.items() if at - start >= WARM_SECONDS * 1e9}
    window = int(2 * statistics.median(arrived[mark] - at for mark, at in counted.items()))
    return [
        Way((arrived[mark] - at) / 1e6, cpu_stalls.stalled(at, at + window) if cpu_stalls.known else None)
        for mark, at in counted.items()
    ]


def cuts(ways: Sequence[Way]) -> tuple[float, float, float]:
    """Return the 50th, 95th and 99th percentile of the milliseconds."""
    found = statistics.quantiles((way.milliseconds for way in ways), n=100, method="inclusive")
    return found[49], found[94], found[98]


def unhindered(ways: Sequence[Way], name: str) -> dict[str, float]:
    """Return the figures of rows without a stall of a processor, and the share of the others."""
    free = [way for way in ways if way.hindered is False]
    if len(free) < len(ways) // 2:
        return {}
    p50, p95, p99 = cuts(free)
    return {
        f"{name}hindered_share": 1 - len(free) / len(ways),
        f"{name}unhindered_p95_vs_p50": p95 / p50,
        f"{name}unhindered_p99_vs_p50": p99 / p50,
    }


@contextmanager
def polling(place: Place, topic: str) -> Iterator[None]:
    """Run the floor while the context lasts."""
    with running(poll, place.bare(), topic):
        yield


def poll(place: Place, topic: str, line: Line) -> None:
    """Poll every millisecond; publish the rows in a Kafka transaction, then delete them."""
    producer = Producer({**place.client(), "transactional.id": f"floor-{topic}"})
    producer.init_transactions()
    head = f"SELECT id, {COLUMNS} FROM outbox WHERE dispatched_time IS NULL ORDER BY id LIMIT 100"  # noqa: S608
    with psycopg.connect(place.dsn, autocommit=True) as connection:
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
    """Return the commit time of each row, in seconds from the start, and its key: the same at each call."""
    draw = random.Random(1)
    times: list[tuple[float, str]] = []
    moment = draw.expovariate(PER_SECOND)
    while moment < seconds:
        times.append((moment, f"key-{draw.randrange(KEYS):x}"))
        moment += draw.expovariate(PER_SECOND)
    return times


def write(place: Place, topic: str, writer: int, rows: Sequence[tuple[float, str]], line: Line) -> None:
    """Commit each row at its time; report when each commit returned."""
    plan = Plan(
        dsn=place.dsn, records=1, keys=KEYS, topic=topic, value_bytes=VALUE_BYTES, run="latency", shape=place.shape
    )
    outbox = Outbox("outbox", shape=place.shape)
    committed: dict[bytes, int] = {}
    with psycopg.connect(place.dsn) as connection:
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


def read(place: Place, topic: str, count: int, line: Line) -> None:
    """Read committed records and note when each arrives; report the times when all have arrived."""
    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
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


def received(line: Line, seconds: float) -> dict[bytes, int]:
    if not line.poll(seconds + PATIENCE_SECONDS):
        raise TimeoutError("the rows did not arrive")
    answer: dict[bytes, int] = line.recv()
    return answer
