"""Publish a record, and wait until its entity can be read: for applications that publish first. No Spark, no Java.

1. Read the stored offsets of the topic. If the record then gets a lower offset than the stored one, the topic was
   deleted and created again, and the stored offset is that of the old one.
2. Produce the record with `acks=all`, by an idempotent producer.
3. Query the stored offset of its partition until it is greater than the record's. Then capture's transaction has
   committed: every reader of the same database sees the entity, or a later state of it.
4. The same query tells whether capture could not apply the record, and why: then it is dead.

After a time-out the record is published and not applied yet: it must not be published again.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from confluent_kafka import KafkaError, KafkaException, Producer
from psycopg import Connection

from thresher.capture.problem import CaptureTimeout, NotPublished, PublishUnknown, RecordDead, topic_changed
from thresher.capture.store.tables import CaptureTables, visitor
from thresher.core.errors import InvalidInput
from thresher.core.secrets import Secret, revealed_properties
from thresher.db.postgres.bounded_connection import hang_up
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.dsn import kept_dsn
from thresher.kafka.property import without_value
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.outbox.message import Message

_DEFAULTS: dict[str, Any] = {
    "linger.ms": 0,
    "log_level": 2,
    # The same as the relay's, so that both send a key to the same partition.
    "partitioner": "murmur2_random",
}
_OURS: dict[str, Any] = {"enable.idempotence": True, "acks": "all"}
# Intervals between queries: about the time of a fast capture at first, 1.5 times as long each time, up to the longest.
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS, _MORE = 0.001, 0.05, 1.5
_POLL_SECONDS = 0.05
_CONNECT_SECONDS, _CLOSE_SECONDS = 10.0, 10.0
# Errors after which the record is certainly not in the topic. After any other error it may be.
_REFUSALS = frozenset({Refusal.ROW, Refusal.SIZE, Refusal.TIME, Refusal.TOPIC, Refusal.TOPIC_DENIED, Refusal.CLIENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The partition and offset of a published record."""

    topic: str
    partition: int
    offset: int
    # The stored offsets were those of an older topic of the same name when the record was published: its topic id.
    older_topic: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class EntityPublisher:
    """Publishes to captured topics, and waits for capture. A context manager. Safe from any thread.

    `capture` is the name of the capture, `schema` that of its tables. `connect` returns a connection to the database
    that holds the stored offsets. It is called on first use, and again after a lost connection.
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
            self._producer = Producer(revealed_properties({**_DEFAULTS, **kafka, **_OURS}))
        except KafkaException as error:
            raise InvalidInput(f"the producer's properties: {without_value(error.args[0].str())}") from None
        self._connect: Callable[[], Connection[Any]] | Secret = kept_dsn(connect)
        self._capture = capture
        tables = CaptureTables(schema=schema)
        self._await, self._before = tables.bound("capture_await"), tables.bound("capture_offsets_topic")
        self._lock = threading.Lock()
        self._connection: Connection[Any] | None = None

    def __enter__(self) -> "EntityPublisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait up to 10 s for records in flight, and close the connection."""
        self._producer.flush(_CLOSE_SECONDS)
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def publish_and_wait(self, record: Message, timeout: float = 10.0) -> Published:
        """Publish a record, and return once its entity can be read. `timeout`, in seconds, covers both.

        Raises `NotPublished`, `PublishUnknown`, `RecordDead` or `CaptureTimeout`: each says whether the record is in
        the topic.
        """
        deadline = time.monotonic() + timeout
        before = self._stored(record.topic, deadline)
        published = self.publish(record, deadline - time.monotonic())
        older_topic, stored = before.get(published.partition, (None, 0))
        if stored > published.offset:
            published = replace(published, older_topic=older_topic)
        self.wait(published, deadline - time.monotonic())
        return published

    def publish(self, record: Message, timeout: float = 10.0) -> Published:
        """Publish a record, and return its partition and offset. Raises `NotPublished` or `PublishUnknown`."""
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
            why = error.args[0].str() if isinstance(error, KafkaException) else "the client's buffer is full"
            raise NotPublished(f"the record for {record.topic} was not published: {why}") from error
        deadline = time.monotonic() + timeout
        while not answers:
            if self._producer.poll(_POLL_SECONDS) == 0 and not answers and time.monotonic() > deadline:
                raise PublishUnknown(
                    f"the broker did not answer within {timeout:g} s: the record may or may not be in {record.topic}"
                )
        error_of, message = answers[0]
        if error_of is None:
            return Published(topic=record.topic, partition=message.partition(), offset=message.offset())
        if refusal_of(error_of) in _REFUSALS or error_of.code() == KafkaError._PURGE_QUEUE:
            raise NotPublished(f"the record for {record.topic} was not published: {error_of.str()}")
        raise PublishUnknown(
            f"the broker did not answer: {error_of.str()}; the record may or may not be in {record.topic}"
        )

    def wait(self, published: Published, timeout: float = 10.0) -> None:
        """Wait until capture has applied a record. Raises `RecordDead` or `CaptureTimeout`.

        It also waits while the database is down. Only `publish_and_wait` notices a topic that was created again.
        """
        deadline = time.monotonic() + timeout
        pause = _FIRST_LOOK_SECONDS
        while True:
            try:
                waits_for = self._look(published, deadline)
                if not waits_for:
                    return
            except psycopg.Error as error:
                waits_for = f"the database did not answer: {_told(error)}; the record will be applied"
            left = deadline - time.monotonic()
            if left <= 0:
                raise CaptureTimeout(
                    f"the record at {published} is published, but the capture {self._capture} has not applied it in "
                    f"time: {waits_for}. Do not publish it again"
                )
            time.sleep(min(pause, left))
            pause = min(pause * _MORE, _LONGEST_LOOK_SECONDS)

    def _look(self, published: Published, deadline: float) -> str:
        """Return why a record is not applied yet; an empty text if it is. Raises `RecordDead`."""
        place = {"topic": published.topic, "partition": published.partition, "offset": published.offset}
        rows = self._ask(self._await, place, deadline)
        if not rows:
            return "it has no stored offset for this partition: check that a capture of this name captures the topic"
        topic_id, stored, kind, reason = rows[0]
        if topic_id == published.older_topic:
            return topic_changed(published.topic)
        if stored <= published.offset:
            return "it will be applied; check that the capture runs, and its lag"
        if kind is not None:
            raise RecordDead(str(published), kind, reason)
        return ""

    def _stored(self, topic: str, deadline: float) -> dict[int, tuple[str, int]]:
        """Return topic id and stored offset by partition. Raises `NotPublished`."""
        while True:
            try:
                rows = self._ask(self._before, {"topic": topic}, deadline)
                return {partition: (topic_id, stored) for partition, topic_id, stored in rows}
            except psycopg.Error as error:
                passes = isinstance(error, psycopg.OperationalError)
                if not passes or time.monotonic() + _LONGEST_LOOK_SECONDS > deadline:
                    why = "the database did not answer" if passes else "the stored offsets cannot be read"
                    raise NotPublished(f"nothing was published to {topic}: {why}: {_told(error)}") from error
            time.sleep(_LONGEST_LOOK_SECONDS)

    def _ask(self, query: LiteralString, values: Mapping[str, Any], deadline: float) -> list[tuple[Any, ...]]:
        """Query the database, until the deadline. Raises `psycopg.Error`."""
        left = max(0.0, deadline - time.monotonic())
        if not self._lock.acquire(timeout=left + _LONGEST_LOOK_SECONDS):
            raise psycopg.OperationalError("the connection is busy: another thread waits for an answer")
        try:
            connection = self._connected(deadline)
            left = max(0.0, deadline - time.monotonic())
            # psycopg has no time-out for an answer: it would wait as long as a lock is held, or for a dead host.
            timer = threading.Timer(left + _LONGEST_LOOK_SECONDS, hang_up, [connection])
            timer.daemon = True
            timer.start()
            try:
                return OwnCursor(connection).execute(query, {"capture": self._capture, **values}).fetchall()
            finally:
                timer.cancel()
        finally:
            self._lock.release()

    def _connected(self, deadline: float) -> Connection[Any]:
        if self._connection is None or self._connection.closed:
            seconds = math.ceil(min(_CONNECT_SECONDS, max(1.0, deadline - time.monotonic())))
            made = (
                psycopg.connect(
                    self._connect.reveal(), application_name=visitor(self._capture, "wait"), connect_timeout=seconds
                )
                if isinstance(self._connect, Secret)
                else self._connect()
            )
            # Autocommit: each query sees what is committed by then, and no transaction stays open.
            made.autocommit = True
            self._connection = made
        return self._connection


def _told(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
