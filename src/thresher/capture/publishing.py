"""Publish a record, and wait until its entity can be read: for applications that publish first. No Spark, no Java.

1. The record is produced with all acks, by an idempotent producer.
2. The stored offset of its partition is looked at until it has passed the record: then capture's transaction has
   committed, and whoever reads from the same database sees the entity, or a later state of it.
3. A record that capture cannot apply is dead: that is seen in the same look, with the reason.

A time-out says nothing about the record but that it is published: it will be applied, and must not be sent again.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException, Producer
from psycopg import Connection

from thresher.capture.problem import CaptureTimeout, NotPublished, PublishUnknown, RecordDead
from thresher.capture.store.tables import CaptureTables, visitor
from thresher.core.errors import InvalidInput
from thresher.db.postgres.cursor import OwnCursor
from thresher.outbox.message import Message

_DEFAULTS: dict[str, Any] = {
    "linger.ms": 0,
    "log_level": 2,
    # As the relay has it: a key has one partition, whoever sends.
    "partitioner": "murmur2_random",
}
_OURS: dict[str, Any] = {"enable.idempotence": True, "acks": "all"}
# The first look comes when a quick capture is done; each further one waits half as long again.
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS, _MORE = 0.001, 0.05, 1.5
_POLL_SECONDS = 0.05
# What the client gives up on without an answer: the broker may have the record all the same.
_UNANSWERED = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a record is in its topic."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class EntityPublisher:
    """Publishes to captured topics, and waits for capture. A context manager. Safe from any thread.

    `capture` is the name of the capture, `schema` that of its tables. `connect` returns a connection to the database in
    which it stores its offsets; one is made when it is needed, and made again when it is lost.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        connect: Callable[[], Connection[Any]] | str,
        *,
        capture: str,
        schema: str | None = None,
    ) -> None:
        try:
            self._producer = Producer({**_DEFAULTS, **kafka, **_OURS})
        except KafkaException as error:
            raise InvalidInput(f"the producer's properties: {error.args[0].str()}") from error
        self._connect = connect
        self._capture = capture
        self._query = CaptureTables(schema=schema).bound("capture_await")
        self._lock = threading.Lock()
        self._connection: Connection[Any] | None = None

    def __enter__(self) -> "EntityPublisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. Records that are on their way are waited for."""
        self._producer.flush()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def publish_and_wait(self, record: Message, timeout: float = 10.0) -> Published:
        """Publish a record, and return once its entity can be read. `timeout` is in seconds, for both together.

        Raises `NotPublished`, `PublishUnknown`, `RecordDead` or `CaptureTimeout`: each says whether the record is in
        the topic.
        """
        deadline = time.monotonic() + timeout
        published = self.publish(record, timeout)
        self.wait(published, deadline - time.monotonic())
        return published

    def publish(self, record: Message, timeout: float = 10.0) -> Published:
        """Publish a record, and return where it is. Raises `NotPublished` or `PublishUnknown`."""
        answers: list[tuple[KafkaError | None, Any]] = []
        headers = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                -1 if record.partition is None else record.partition,
                on_delivery=lambda error, message: answers.append((error, message)),
                timestamp=0 if record.timestamp is None else max(1, int(record.timestamp.timestamp() * 1000)),
                headers=list(headers),
            )
        except (KafkaException, BufferError) as error:
            why = error.args[0].str() if isinstance(error, KafkaException) else "the client's queue is full"
            raise NotPublished(f"the record for {record.topic} was not published: {why}") from error
        deadline = time.monotonic() + timeout
        while not answers:
            if self._producer.poll(_POLL_SECONDS) == 0 and not answers and time.monotonic() > deadline:
                raise PublishUnknown(f"the broker did not answer in {timeout:g} s: the record may be in {record.topic}")
        error_of, message = answers[0]
        if error_of is None:
            return Published(topic=record.topic, partition=message.partition(), offset=message.offset())
        if error_of.code() in _UNANSWERED:
            raise PublishUnknown(f"the broker did not answer: {error_of.str()}; the record may be in {record.topic}")
        raise NotPublished(f"the record for {record.topic} was not published: {error_of.str()}")

    def wait(self, published: Published, timeout: float = 10.0) -> None:
        """Wait until capture has applied a record. Raises `RecordDead` or `CaptureTimeout`.

        A database that is away is waited for too.
        """
        deadline = time.monotonic() + timeout
        pause = _FIRST_LOOK_SECONDS
        trouble = ""
        while True:
            try:
                if self._is_applied(published):
                    return
                trouble = ""
            except psycopg.OperationalError as error:
                trouble = f"; the database did not answer: {' '.join(str(error).split())}"
            left = deadline - time.monotonic()
            if left <= 0:
                raise CaptureTimeout(
                    f"the record at {published} is published, and the capture {self._capture} has not applied it in "
                    f"time: it will, do not publish it again; see that it runs and is not behind{trouble}"
                )
            time.sleep(min(pause, left))
            pause = min(pause * _MORE, _LONGEST_LOOK_SECONDS)

    def _is_applied(self, published: Published) -> bool:
        asked = {
            "capture": self._capture,
            "topic": published.topic,
            "partition": published.partition,
            "offset": published.offset,
        }
        with self._lock:
            row = OwnCursor(self._connected()).execute(self._query, asked).fetchone()
        if row is None or row[0] <= published.offset:
            return False
        _, kind, reason = row
        if kind is not None:
            raise RecordDead(str(published), kind, reason)
        return True

    def _connected(self) -> Connection[Any]:
        if self._connection is None or self._connection.closed:
            made = (
                psycopg.connect(self._connect, application_name=visitor(self._capture, "wait"), connect_timeout=10)
                if isinstance(self._connect, str)
                else self._connect()
            )
            # Each look sees what is committed by then, and holds nothing open.
            made.autocommit = True
            self._connection = made
        return self._connection
