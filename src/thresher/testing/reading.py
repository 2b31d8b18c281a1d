"""What a verification looks at: the records that a `read_committed` reader gets, and the rows left in the database.

A topic is read from its first record to the last stable offset that each partition had when the reading began. Nothing
is committed for the group. An end that is not reached in time is an error, never an end: what was not looked at must
not count as lost. The rows waiting in the outbox and the dead ones are of one snapshot.

The order of looking matters while a relay is at work: first the database, then Kafka. A row that left the outbox after
the snapshot counts as pending then; the other way round it would be taken for lost.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from psycopg import Connection

from thresher.core.errors import InvalidInput, ThresherError
from thresher.db import TableName, statement
from thresher.db.postgres.control import control_table
from thresher.db.postgres.cursor import OwnCursor
from thresher.outbox import Shape
from thresher.testing.history import IDENTITY_HEADER
from thresher.testing.record import Read, headers_digest, value_digest

_log = logging.getLogger(__name__)
_BATCH = 10_000
_LOOK_SECONDS = 0.1
# In a request for offsets by time: the last stable one, for a reader of committed records.
_LATEST = -1
_DEFAULTS = {"group.id": "thresher-verify", "fetch.wait.max.ms": "50"}
# What the reading's promises rest on.
_FIXED = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    # A record deleted while it is being read, or a log cut back, must not be stepped over or read again in silence.
    "auto.offset.reset": "error",
}

_Place = tuple[str, int]


class ReadingFailed(ThresherError):  # noqa: N818
    """The topics could not be read to their ends: nothing is known about what was not read."""

    retryable = True


class TopicMissing(InvalidInput):
    """A topic is not there: it is misspelt, or nothing was published yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The identities of rows that the database holds: waiting in the outbox, and set aside as dead.

    `tailed`: a tail publishes from the log, and its rows may stay in the table: only what was not read waits.
    """

    pending: frozenset[str]
    dead: frozenset[str]
    tailed: bool = False

    def waiting(self, reads: Iterable[Read]) -> frozenset[str]:
        """Return what is pending, given what was read after that."""
        return self.pending - {read.identity for read in reads} if self.tailed else self.pending


def read_topics(
    bootstrap: str,
    topics: Iterable[str],
    *,
    config: Mapping[str, str] | None = None,
    patience_seconds: float = 30.0,
    uncommitted: bool = False,
) -> list[Read]:
    """Return the committed records of the topics, in the order of their offsets within each partition.

    With `uncommitted`, all of them, aborted ones too: what a reader gets that does not ask for committed ones.
    `config` adds properties of the client. Raises `TopicMissing`, `InvalidInput` where a property cannot be, and
    `ReadingFailed` if the brokers are out of reach or for `patience_seconds` nothing more comes before the end.
    """
    wanted = list(dict.fromkeys(topics))
    consumer = _consumer(bootstrap, config or {}, uncommitted=uncommitted)
    try:
        ends = _ends(consumer, _places(consumer, wanted, patience_seconds), patience_seconds)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in ends])
        return _read_to(consumer, ends, patience_seconds)
    except KafkaException as error:
        raise ReadingFailed(f"cannot read {', '.join(wanted)} from {bootstrap}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def follow_topic(bootstrap: str, topic: str, over: threading.Event) -> Iterator[str]:
    """Yield the identities of committed records as they come, until it is over."""
    consumer = _consumer(bootstrap, {"fetch.wait.max.ms": "5"})
    try:
        places = _places(consumer, [topic], 30.0)
        consumer.assign([TopicPartition(name, partition, OFFSET_BEGINNING) for name, partition in places])
        while not over.is_set():
            message = consumer.poll(_LOOK_SECONDS)
            if message is not None and message.error() is None:
                yield _identity(_headers(message))
    finally:
        consumer.close()


def rows_held(connection: Connection[Any], table: TableName, shape: Shape = Shape.THRESHER) -> Held:
    """Return what is pending in the outbox, and what is in `<outbox>_dead` if there is one; unmarked rows left out.

    Reads one snapshot in a transaction of its own: the connection must not be in one. Raises `InvalidInput` if there is
    no such outbox.
    """
    if shape is Shape.DEIMOS:
        raise InvalidInput("Deimos' table has no headers, by which rows are told: verify without its database")
    with connection.transaction():
        cursor = OwnCursor(connection)
        cursor.execute(statement("verify_snapshot"))
        found = cursor.execute(statement("table_schema"), [table.quoted()]).fetchone()
        if found is None:
            raise InvalidInput(f"there is no outbox {table} in the database")
        pending = _identities(cursor, "verify_pending" if shape is Shape.THRESHER else "verify_rows", table.quoted())
        # Beside its outbox, wherever the search_path found that.
        dead = TableName(table=table.table, schema=str(found[0])).companion("_dead")
        there = cursor.execute(statement("table_schema"), [dead]).fetchone() is not None
        return Held(
            pending=pending,
            dead=_identities(cursor, "verify_rows", dead) if there else frozenset(),
            tailed=_is_tailed(cursor, TableName(table=table.table, schema=str(found[0]))),
        )


def _is_tailed(cursor: OwnCursor, outbox: TableName) -> bool:
    """Whether a tail publishes the outbox, as far as the session may read that."""
    control = control_table(outbox.schema)
    row = cursor.execute(statement("dispatch_relay"), [control.table, outbox.quoted()]).fetchone()
    if row is None or not row[2]:
        return False
    return (outbox.quoted(),) in cursor.execute(statement("log_tailed", control)).fetchall()


def _identities(cursor: OwnCursor, name: str, table: str) -> frozenset[str]:
    # The statement has a parameter: a percent sign of the name must not look like one.
    query = statement(name).replace("{table}", table.replace("%", "%%"))
    return frozenset(_text(value) for (value,) in cursor.execute(query, [IDENTITY_HEADER]) if value is not None)


def _consumer(bootstrap: str, config: Mapping[str, str], *, uncommitted: bool = False) -> Consumer:
    fixed = {**_FIXED, "isolation.level": "read_uncommitted"} if uncommitted else _FIXED
    if taken := sorted({"bootstrap.servers", *_FIXED} & config.keys()):
        raise InvalidInput(f"Kafka properties {', '.join(taken)}: they are the verification's own")
    # What the client meets is told once, by the error that ends the verification.
    quiet = {} if "debug" in config else {"log_level": "0"}
    try:
        return Consumer({**_DEFAULTS, **quiet, **config, **fixed, "bootstrap.servers": bootstrap}, logger=_log)
    except KafkaException as error:
        raise InvalidInput(f"Kafka properties: {error.args[0].str()}") from error


def _places(consumer: Consumer, topics: Iterable[str], patience_seconds: float) -> list[_Place]:
    # All of them, since asking for one by name may create it.
    known = consumer.list_topics(timeout=patience_seconds).topics
    if missing := [topic for topic in topics if topic not in known]:
        raise TopicMissing(f"no such topic: {', '.join(missing)}")
    return [(topic, partition) for topic in topics for partition in sorted(known[topic].partitions)]


def _ends(consumer: Consumer, places: Iterable[_Place], patience_seconds: float) -> dict[_Place, int]:
    """Return the last stable offset of each partition."""
    asked = [TopicPartition(topic, partition, _LATEST) for topic, partition in places]
    deadline = time.monotonic() + patience_seconds
    while True:
        answers = consumer.offsets_for_times(asked, timeout=patience_seconds)
        error = next((answer.error for answer in answers if answer.error is not None), None)
        if error is None:
            return {(answer.topic, answer.partition): answer.offset for answer in answers}
        # A leader that moves is known again soon.
        if time.monotonic() > deadline:
            raise KafkaException(error)
        time.sleep(_LOOK_SECONDS)


def _read_to(consumer: Consumer, ends: Mapping[_Place, int], patience_seconds: float) -> list[Read]:
    reads: list[Read] = []
    left = dict(ends)
    heard = time.monotonic()
    while left:
        messages = consumer.consume(_BATCH, timeout=_LOOK_SECONDS)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > patience_seconds:
            where = ", ".join(f"{topic}[{partition}] to offset {end}" for (topic, partition), end in left.items())
            raise ReadingFailed(f"nothing came for {patience_seconds:g} s, but these were not read to the end: {where}")
        for message in messages:
            _take(message, left, reads)
    return reads


def _take(message: Message, left: dict[_Place, int], reads: list[Read]) -> None:
    """Keep a record that lies before its partition's end; strike the partition off when the end is reached."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    topic, partition, offset = str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
    end = left.get((topic, partition))
    if end is None:
        return
    if error is None and offset < end:
        reads.append(_read(message, topic, partition, offset))
    # Marks of transactions take offsets too: the last record may lie before the end, and only the event tells.
    if offset >= (end if error is not None else end - 1):
        del left[topic, partition]


def _read(message: Message, topic: str, partition: int, offset: int) -> Read:
    headers = _headers(message)
    kind, timestamp = message.timestamp()
    return Read(
        identity=_identity(headers),
        key=message.key(),
        topic=topic,
        partition=partition,
        offset=offset,
        value=value_digest(message.value()),
        headers=headers_digest(headers),
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        stamped_by_broker=kind == TIMESTAMP_LOG_APPEND_TIME,
    )


def _headers(message: Message) -> list[tuple[str, bytes | str | None]]:
    headers = message.headers() or ()
    return list(headers.items() if isinstance(headers, dict) else headers)


def _identity(headers: Iterable[tuple[str, bytes | str | None]]) -> str:
    return next((_text(value) for name, value in headers if name == IDENTITY_HEADER and value is not None), "")


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
