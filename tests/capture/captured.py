"""A capture in this process, on the Spark of the tests: a topic and a table of orders, and dead records."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from confluent_kafka import Producer, TopicPartition

from tests.processes import eventually
from tests.servers import create_topic
from thresher.capture.capture import Capture
from thresher.capture.configuration import capture_configured
from thresher.capture.settings import CaptureSettings
from thresher.capture.store.schema import create_schema
from thresher.core.errors import ThresherError
from thresher.kafka.admin import Admin
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.transactional import TransactionalProducer
from thresher.service.service import State

# Five times the longest time seen on a busy machine, plus 5 s.
PATIENCE_SECONDS = 90.0
ALONE = {"election": "none", "status": "off"}
COLUMNS = {"id": "$key", "total": "total", "note": "note"}


class CapturedOrders:
    """A topic of orders, and the table to which they are captured."""

    def __init__(
        self, bootstrap: str, dsn: str, *, partitions: int = 3, direct: str | None = None, **keys: Any
    ) -> None:
        """`direct` is the broker's address for the test's own reads, if `bootstrap` leads through a proxy."""
        self.topic = f"orders-{uuid.uuid4().hex[:12]}"
        self.dsn = dsn
        self.eyes = {"bootstrap.servers": direct or bootstrap}
        self.admin = Admin.of(self.eyes)
        create_topic(self.admin, self.topic, partitions)
        self.keys: dict[str, Any] = {
            "name": "shop",
            "data_source": dsn,
            "kafka": {"bootstrap.servers": bootstrap},
            "topics": {self.topic: {"table": "orders", "columns": COLUMNS}},
            **ALONE,
            **keys,
        }
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE orders (id text PRIMARY KEY, total integer NOT NULL, note text)")
            create_schema(connection, self.settings.tables, self.settings.mappings)
        self.producer = self._producer()

    @property
    def settings(self) -> CaptureSettings:
        return capture_configured(self.keys).settings

    def publish(self, *orders: tuple[str, int | bytes | None], partition: int = -1, timestamp: int = 0) -> None:
        """Publish orders: an id and its total, None for a tombstone, or a value as it is."""
        for key, total in orders:
            content = total if total is None or isinstance(total, bytes) else json.dumps({"total": total}).encode()
            self.producer.produce(self.topic, content, key, partition, timestamp=timestamp)
        assert self.producer.flush(30) == 0

    def widen(self, partitions: int) -> None:
        """Raise the topic's number of partitions, and make the test's producer use them."""
        self.admin.widen_topic(self.topic, partitions)
        eventually(lambda: getattr(self.admin.topic(self.topic), "partitions", 0) == partitions, PATIENCE_SECONDS)
        # A producer keeps its metadata for minutes, so the test takes a new one.
        self.producer = self._producer()

    def remove_before(self, partition: int, offset: int) -> None:
        """Remove records before an offset, as retention does."""
        place = TopicPartition(self.topic, partition, offset)
        for future in self.admin.client.delete_records([place]).values():
            future.result(30)

    def make_anew(self, partitions: int = 3) -> None:
        """Delete the topic, and create it again under the same name."""
        self.admin.delete_topics([self.topic])
        eventually(lambda: self.admin.topic(self.topic) is None, PATIENCE_SECONDS)
        create_topic(self.admin, self.topic, partitions)
        self.producer = self._producer()

    def _producer(self) -> Producer:
        return Producer(
            {**self.eyes, "acks": "all", "linger.ms": 0, "partitioner": "murmur2_random", "log_level": 2}
        )  # fmt: skip

    def publish_aborted(self, *orders: tuple[str, int]) -> None:
        """Publish orders in a transaction, and abort it."""
        producer = TransactionalProducer(f"{self.topic}-aborted", self.eyes)
        producer.init(self.topic)
        producer.begin()
        records = (
            (self.topic, json.dumps({"total": total}).encode(), key.encode(), -1, 0, None) for key, total in orders
        )
        producer.produce(enumerate(records))
        assert producer.flush() == []
        # The next `init_transactions` ends the transaction.
        TransactionalProducer(f"{self.topic}-aborted", self.eyes).init(self.topic)

    def firsts(self) -> dict[int, int]:
        """The first offset of each partition."""
        facts = self.admin.topic(self.topic)
        assert facts is not None
        ends = partition_ends(self.admin.client, self.topic, range(facts.partitions))
        return {partition: each.first for partition, each in ends.items()}

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(text.encode()).fetchall()

    def rows(self) -> dict[str, int]:
        return dict(self.query("SELECT id, total FROM orders"))

    def stored(self) -> dict[int, int]:
        return dict(self.query("SELECT kafka_partition, next_offset FROM thresher_capture_offsets ORDER BY 1"))

    def dead(self) -> list[tuple[Any, ...]]:
        return self.query("SELECT kafka_key, kind FROM thresher_capture_dead ORDER BY id")

    def await_rows(self, wanted: Mapping[str, int], complaint: Any = lambda: "") -> None:
        eventually(lambda: self.rows() == dict(wanted), PATIENCE_SECONDS, lambda: f"{self.rows()} {complaint()}")


@contextmanager
def captured(orders: CapturedOrders, *, hook: str | None = None, **keys: Any) -> Iterator[Capture]:
    """Capture while the context lasts. An error that ends the capture is raised at its end."""
    with Capture({**orders.keys, **keys}, hook=hook) as capture:

        def capturing() -> bool:
            if capture.state is State.STOPPED:
                capture.wait()
            found = capture.snapshot()
            return found is not None and all(shard.gauges.get("capturing") for shard in found.shards)

        eventually(
            capturing,
            PATIENCE_SECONDS,
            lambda: f"{capture.state}, {capture.waiting_for}, {capture.snapshot()}",
        )
        yield capture


def ended_by(orders: CapturedOrders, **keys: Any) -> ThresherError:
    """Run a capture until it fails, and return its error."""
    capture = Capture({**orders.keys, **keys})
    capture.start()
    try:
        capture.wait(PATIENCE_SECONDS)
    except ThresherError as error:
        return error
    finally:
        capture.stop()
    raise AssertionError("the capture goes on")
