"""Capture: records a second from a topic to a table, against a loop with the same upserts; and `publish_and_wait`.

Both sides get the same topic and an empty table, in turns; the database is durable. The loop reads, decodes and upserts
batches of the same size with the same statement, and commits group offsets. It guarantees nothing: no stored offsets,
no dead records, no second reader. A capture is timed from its first stored offset to its last, without the start of
Spark.

    ./run bench captures [--records N]
"""

import argparse
import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer

from bench.measuring.place import durable_stack
from bench.measuring.report import measured, report
from bench.measuring.rounds import Figures, in_turns
from thresher.capture.capture import Capture
from thresher.capture.configuration import capture_configured
from thresher.capture.publishing import EntityPublisher
from thresher.capture.rows.guard import Change, Guard
from thresher.capture.store.entity_table import entity_table
from thresher.capture.store.schema import create_schema
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox.message import Message

RECORDS, KEYS, PARTITIONS, BATCH, WAITS = 300_000, 50_000, 2, 5_000, 200
_COLUMNS = {"id": "$key", "customer": "customer.name", "total": "total", "note": "note"}
_WAIT_SECONDS = 120.0


class CapturedTable:
    """A topic of orders, and the table to which it is captured."""

    def __init__(self, stack: Stack, dsn: str) -> None:
        self.dsn, self.bootstrap = dsn, stack.kafka.bootstrap
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        Admin(self.bootstrap).create_topic(self.topic, partitions=PARTITIONS)

    @property
    def keys(self) -> dict[str, Any]:
        return {
            "name": "bench",
            "data_source": self.dsn,
            "kafka": {"bootstrap.servers": self.bootstrap},
            "topics": {self.topic: {"table": "orders", "columns": _COLUMNS}},
            "batch_records": BATCH,
            "election": "none",
            "status": "off",
        }

    def fill(self, records: int) -> None:
        """Publish orders of about 200 bytes."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, "partitioner": "murmur2_random"})
        for number in range(records):
            while True:
                try:
                    producer.produce(self.topic, order(number), f"order-{number * 7919 % KEYS}")
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0

    def empty(self) -> None:
        """Recreate the table, without rows and stored offsets."""
        settings = capture_configured(self.keys).settings
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS orders, thresher_capture_offsets, thresher_capture_dead")
            connection.execute("CREATE TABLE orders (id text PRIMARY KEY, customer text, total numeric, note text)")
            create_schema(connection, settings.tables, settings.mappings)
            connection.execute("CHECKPOINT")

    def stored(self) -> int:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute("SELECT coalesce(sum(next_offset), 0) FROM thresher_capture_offsets").fetchone()
        return 0 if row is None else int(row[0])


def order(number: int) -> bytes:
    fields = {"customer": {"name": f"customer {number % 1000}", "id": number}, "total": number / 100, "note": "n" * 100}
    return json.dumps(fields).encode()


def captured_per_s(place: CapturedTable, records: int) -> float:
    """Return the records a second that a running capture applies."""
    place.empty()
    with _capture(place), psycopg.connect(place.dsn, autocommit=True) as connection:
        times: list[tuple[float, int]] = []
        deadline = time.monotonic() + _WAIT_SECONDS
        while not times or times[-1][1] < records:
            assert time.monotonic() < deadline, times[-1:]
            row = connection.execute("SELECT coalesce(sum(next_offset), 0) FROM thresher_capture_offsets").fetchone()
            if row is not None and row[0] and (not times or times[-1][1] != row[0]):
                times.append((time.perf_counter(), int(row[0])))
            # At long intervals, because each look uses CPU time.
            time.sleep(0.02)
    (began, first), (ended, last) = times[0], times[-1]
    return (last - first) / (ended - began)


def bare_per_s(place: CapturedTable, records: int) -> float:
    """Return the records a second that a loop with the same upserts applies."""
    place.empty()
    (mapping,) = capture_configured(place.keys).settings.mappings
    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": f"bare-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "queued.min.messages": 50_000,
        }
    )
    consumer.subscribe([place.topic])
    done, began = 0, 0.0
    with psycopg.connect(place.dsn) as connection:
        table = entity_table(connection, mapping)
        first = 0
        while done < records:
            messages = [consumer.poll(10.0), *consumer.consume(BATCH - 1, 0)]
            changes = {each.key(): _change(each) for each in messages if each is not None}
            table.write(connection, list(changes.values()))
            connection.commit()
            consumer.commit(asynchronous=True)
            done += sum(each is not None for each in messages)
            if not began:
                # Timed like a capture: from the first commit on.
                began, first = time.perf_counter(), done
    took = time.perf_counter() - began
    consumer.close()
    return (done - first) / took


def _change(message: Any) -> Change:
    fields = json.loads(message.value())
    values = (fields["customer"]["name"].encode(), str(fields["total"]).encode(), fields["note"].encode())
    guard = Guard(message.partition(), message.offset(), message.timestamp()[1])
    return Change((message.key(),), (message.key(), *values), guard)


def wait_ms(place: CapturedTable, waits: int = WAITS) -> float:
    """Return the median time of `publish_and_wait`, called one after another."""
    place.empty()
    took = []
    with _capture(place), EntityPublisher({"bootstrap.servers": place.bootstrap}, place.dsn, capture="bench") as one:
        for number in range(waits):
            message = Message(topic=place.topic, key=f"order-{number}", value=order(number))
            began = time.perf_counter()
            one.publish_and_wait(message, _WAIT_SECONDS if not number else 30.0)
            took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took[waits // 10 :])


def capture_figures(stack: Stack, *, records: int = RECORDS, rounds_: int = 3, waits: int = WAITS) -> Figures:
    """Return `capture_per_s`, `capture_vs_bare` and `publish_and_wait_p50_ms`, on running servers."""
    dsn = stack.postgres.create_database("captured")
    place = CapturedTable(stack, dsn)
    place.fill(records)
    sides: dict[str, Callable[[], float]] = {
        "capture": lambda: captured_per_s(place, records),
        "bare": lambda: bare_per_s(place, records),
    }
    found = in_turns(sides, rounds_, tell=measured)
    ratios = [ours / bare for ours, bare in zip(found["capture"], found["bare"], strict=True)]
    waiting = CapturedTable(stack, dsn)
    waited = [wait_ms(waiting, waits) for _ in range(rounds_)]
    measured("publish_and_wait", statistics.median(waited))
    return {
        "capture_per_s": statistics.median(found["capture"]),
        "capture_vs_bare": statistics.median(ratios),
        "publish_and_wait_p50_ms": statistics.median(waited),
    }


@contextmanager
def _capture(place: CapturedTable) -> Iterator[Capture]:
    with Capture(place.keys) as capture:
        yield capture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with durable_stack() as stack:
        figures = capture_figures(stack, records=options.records, rounds_=options.rounds)
    report(
        "records to rows",
        figures,
        wanted={"capture_vs_bare": "≥ 0.5"},
        settings={"records": options.records, "keys": KEYS, "rounds": options.rounds, "batch": BATCH},
        note=f"{options.records:,} orders of 200 bytes of {KEYS:,} keys in {PARTITIONS} partitions, one shard; durable "
        f"Postgres 18; medians of {options.rounds} rounds",
    )


if __name__ == "__main__":
    main()
