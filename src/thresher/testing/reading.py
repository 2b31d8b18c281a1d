"""Reads what a verification needs: the records that a `read_committed` reader gets, and the rows left in the database.

A topic is read from its first record to the last stable offset that each partition had at the beginning. No offsets are
committed. If an end is not reached in time, that is an error: records that were not read must not count as lost.
Pending and dead rows are read in one snapshot.

While a relay runs, read the database first, then Kafka. Then a row that leaves the outbox after the snapshot counts as
pending. In the other order it would count as lost.
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
from thresher.db.postgres.control import control_table, modes_name
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import keep_to_own_path
from thresher.kafka.fetch_sizes import bounded_fetches
from thresher.outbox import Shape
from thresher.testing.history import IDENTITY_HEADER
from thresher.testing.record import Read, headers_digest, value_digest

_log = logging.getLogger(__name__)
_BATCH = 10_000
_LOOK_SECONDS = 0.1
# In a ListOffsets request: the latest offset, which is the last stable one for `read_committed`.
_LATEST = -1
_DEFAULTS = {"group.id": "thresher-verify", "fetch.wait.max.ms": "50"}
# Properties that a complete reading needs.
_FIXED = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    # If records are deleted during the reading, or the log is truncated, fail rather than skip or repeat records.
    "auto.offset.reset": "error",
}

_Place = tuple[str, int]


class ReadingFailed(ThresherError):  # noqa: N818
    """The topics could not be read to their ends: nothing is known about the records that were not read."""

    retryable = True


class TopicMissing(InvalidInput):
    """A topic does not exist: its name is wrong, or nothing was published yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The identities of rows in the database: pending in the outbox, and dead.

    `tailed`: a tail publishes from the log, and published rows may stay in the table: only unread rows are pending.
    """

    pending: frozenset[str]
    dead: frozenset[str]
    tailed: bool = False

    def waiting(self, reads: Iterable[Read]) -> frozenset[str]:
        """Return the pending rows. With a tail, a row that was read is not pending, even if it is in the table."""
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

    With `uncommitted`, return all records, aborted ones too, as a `read_uncommitted` reader gets them. `config` adds
    properties of the client. Raises `TopicMissing`, and `InvalidInput` if a property is not valid. Raises
    `ReadingFailed` if the brokers cannot be reached, or if nothing comes for `patience_seconds` before the end.
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
    """Yield the identities of committed records as they come, until `over` is set."""
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
    """Return the rows in the outbox, and those in `<outbox>_dead` if it exists. Rows without identity are left out.

    Reads one snapshot in a transaction of its own: the connection must not be in one. Raises `InvalidInput` if there is
    no such outbox.
    """
    if shape is Shape.DEIMOS:
        raise InvalidInput("Deimos' table has no headers, so its rows have no identity: verify without its database")
    with connection.transaction():
        cursor = OwnCursor(connection)
        cursor.execute(statement("verify_snapshot"))
        found = cursor.execute(statement("table_schema"), [table.quoted()]).fetchone()
        if found is None:
            raise InvalidInput(f"there is no outbox {table} in the database")
        keep_to_own_path(connection)
        # The dead table is in the schema of the outbox, which the search_path has resolved.
        table = TableName(table=table.table, schema=str(found[0]))
        pending = _identities(cursor, "verify_pending" if shape is Shape.THRESHER else "verify_rows", table.quoted())
        dead = table.companion("_dead")
        there = cursor.execute(statement("table_schema"), [dead]).fetchone() is not None
        return Held(
            pending=pending,
            dead=_identities(cursor, "verify_rows", dead) if there else frozenset(),
            tailed=_is_tailed(cursor, table),
        )


def _is_tailed(cursor: OwnCursor, outbox: TableName) -> bool:
    """Whether a tail publishes the outbox. False if the session may not read the control table."""
    control = control_table(outbox.schema)
    asked = {"control": control.table, "outbox": outbox.quoted(), "function": modes_name(outbox)}
    row = cursor.execute(statement("dispatch_relay"), asked).fetchone()
    if row is None or not row[2]:
        return False
    return (outbox.quoted(),) in cursor.execute(statement("log_tailed", control)).fetchall()


def _identities(cursor: OwnCursor, name: str, table: str) -> frozenset[str]:
    # The statement has a parameter: a percent sign in the name must not look like a placeholder.
    query = statement(name).replace("{table}", table.replace("%", "%%"))
    return frozenset(_text(value) for (value,) in cursor.execute(query, [IDENTITY_HEADER]) if value is not None)


def _consumer(bootstrap: str, config: Mapping[str, str], *, uncommitted: bool = False) -> Consumer:
    fixed = {**_FIXED, "isolation.level": "read_uncommitted"} if uncommitted else _FIXED
    if taken := sorted({"bootstrap.servers", *_FIXED} & config.keys()):
        raise InvalidInput(f"Kafka properties {', '.join(taken)}: the verification sets them itself, leave them out")
    # No log lines of the client: the error that ends the verification has the reason.
    quiet = {} if "debug" in config else {"log_level": "0"}
    try:
        return Consumer(
            bounded_fetches({**_DEFAULTS, **quiet, **config, **fixed, "bootstrap.servers": bootstrap}), logger=_log
        )
    except KafkaException as error:
        raise InvalidInput(f"Kafka properties: {error.args[0].str()}") from error


def _places(consumer: Consumer, topics: Iterable[str], patience_seconds: float) -> list[_Place]:
    # List all topics: a metadata request for one topic may create it.
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
        # While a partition's leader moves, the request fails for a moment.
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
    """Add a record that is before its partition's end; remove the partition from `left` when its end is reached."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    topic, partition, offset = str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
    end = left.get((topic, partition))
    if end is None:
        return
    if error is None and offset < end:
        reads.append(_read(message, topic, partition, offset))
    # Transaction markers have offsets too: if one is at the end, only the end-of-partition event shows that.
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
