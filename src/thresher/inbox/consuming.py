"""A Kafka consumer with an inbox: each record is processed once, in a transaction, and its offset is committed later.

1. Records are processed one after another, in order within each partition. Each has a transaction: the row in the
   inbox, the writes of the handler, commit. Afterwards offsets are committed, for many records at once.
2. A crash before the commit of offsets leads to repeats, which the inbox recognizes.
3. If the handler keeps failing for a record, the record goes to the dead table with the reason. The next one follows.
   A record without an id goes there at once: no producer can stop a consumer by it.
   A transaction that the database rolled back because of others (class 40: serialization failures, deadlocks) is no
   failure of the handler, and is repeated.
4. While the database is down, or keeps rolling back, consuming waits, and commits no offsets.
5. While another transaction processes the record, consuming waits for it, at most `busy_seconds`. Each wait is logged,
   and told to `on_wait`, with the session that is waited for.
6. A partition waits before a batch that cannot be decompressed, which is logged. The other partitions go on.
7. However it ends, the consumer's position is at the first record that was not processed: it can be used again.

The consumer belongs to the caller, is subscribed, and must not commit by itself: `enable.auto.commit` is false.
"""

import hashlib
import inspect
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from psycopg import Connection
from psycopg.pq import TransactionStatus

from thresher.core.errors import InvalidInput, ThresherError
from thresher.db.postgres.caller_connection import require_connection
from thresher.inbox.dead import InboxRecord, set_aside
from thresher.inbox.inbox import LONGEST_ID, Inbox, admitted_context, is_storable
from thresher.inbox.problem import InboxBusy, MessageRepeated, RecordWithoutId
from thresher.inbox.waiting import Standing, Waiting, told
from thresher.kafka.record_headers import headers_of
from thresher.kafka.unreadable_batch import unreadable_from
from thresher.outbox.message import EVENT_ID

logger = logging.getLogger(__name__)

# Few records per poll: all of them are processed before the next poll, which must come within max.poll.interval.ms.
_AT_ONCE, _POLL_SECONDS = 50, 0.5
# The longest time between two commits of offsets, while records come.
_COMMIT_SECONDS = 1.0
# The pause after a failure: the first one, and the longest.
_BACK_OFF_SECONDS, _MOST_BACK_OFF_SECONDS = 0.1, 5.0
# The longest wait for another transaction that processes a record.
_BUSY_SECONDS, _MOST_BUSY_SECONDS = 600.0, 86_400.0
# The ids of records that are known by their place, or set aside by it.
_PLACE = re.compile(rb"[a-zA-Z0-9._-]+/[0-9]+[/@][0-9]+")
# How often a batch that cannot be decompressed is reported.
_UNREADABLE_SECONDS = 60.0
# Errors that the client reports and recovers from by itself.
_PASSING = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
# Errors of a commit after the partitions were given to another member: the processed records are repeats for it.
_MOVED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._STATE,
    }
)

Handler = Callable[[Connection[Any], InboxRecord], object]


class HandlerFailed(ThresherError):  # noqa: N818
    """A handler has raised an error, which is its cause. It is no sign that the inbox or the database has failed."""


class HandlerUndone(ThresherError):  # noqa: N818
    """The handler rolled back its work without an error."""


@dataclass
class Consumed:
    """The result: records that were processed, repeats that were skipped, and records that went to the dead table."""

    processed: int = 0
    repeated: int = 0
    set_aside: int = 0


@dataclass
class _Rules:
    inbox: Inbox
    context: str
    by_place: bool
    attempts: int
    stop: Callable[[], bool]
    back_off_seconds: float
    busy_seconds: float
    on_wait: Callable[[Waiting], object]


def consume(
    consumer: Any,
    connect: Callable[[], Connection[Any]],
    handler: Handler,
    *,
    inbox: Inbox | None = None,
    context: str = "",
    id_from_place: bool = False,
    attempts: int = 5,
    stop: Callable[[], bool] = lambda: False,
    back_off_seconds: float = _BACK_OFF_SECONDS,
    busy_seconds: float = _BUSY_SECONDS,
    on_wait: Callable[[Waiting], object] = lambda _: None,
) -> Consumed:
    """Process the records of a subscribed consumer until `stop` returns true, and return the counts.

    `connect` returns a connection to the application's database, without an open transaction. `handler` gets it with
    each record, and must neither commit nor roll back. A record's id is its header `event-id`. A record without that
    header goes to the dead table by its place, unless `id_from_place` is set: then topic, partition and offset are the
    id, and a record that its producer sent twice is not recognized. After `attempts` failures of the handler, the
    record goes to the dead table. After a failure of the handler or the database comes a pause: `back_off_seconds` at
    first, doubled after each further failure of the same record, 5 s at most. `on_wait` is called for each failure
    whose cause is not the record: the database, or another transaction that processes the same message. Such a
    transaction is waited for until `busy_seconds` are over.
    Raises `InboxBusy` then, and `KafkaException` if the broker refuses the consumer.
    """
    if attempts < 1:
        raise InvalidInput(f"attempts is {attempts}: it must be at least 1")
    if not 0 < back_off_seconds <= _MOST_BACK_OFF_SECONDS:
        raise InvalidInput(
            f"back_off_seconds is {back_off_seconds}: it must be above 0, and at most {_MOST_BACK_OFF_SECONDS:g}"
        )
    if not 0 < busy_seconds <= _MOST_BUSY_SECONDS:
        raise InvalidInput(f"busy_seconds is {busy_seconds}: it must be above 0, and at most {_MOST_BUSY_SECONDS:g}")
    if inspect.iscoroutinefunction(handler):
        raise InvalidInput("the handler is a coroutine function, which is not supported: it would never be awaited")
    rules = _Rules(
        inbox or Inbox(),
        admitted_context(context),
        id_from_place,
        attempts,
        stop,
        back_off_seconds,
        busy_seconds,
        on_wait,
    )
    return _Consuming(consumer, connect, handler, rules).run()


def id_of(record: InboxRecord, *, from_place: bool = False) -> str:
    """Return the id of a record. Raises `RecordWithoutId`.

    No header gives the id of a place: a producer could name a later record's, which would then pass for a repeat.
    """
    for name, value in record.headers:
        if name == EVENT_ID and value:
            return _hashed(value) if _PLACE.fullmatch(value) else _as_text(value)
    if from_place:
        return _as_text(f"{record.topic}/{record.partition}/{record.offset}".encode())
    raise RecordWithoutId(
        f"the record at offset {record.offset} of {record.topic}/{record.partition} has no header {EVENT_ID}, or the "
        "name of a header is not UTF-8: let its producer set one (Outbox(event_ids=True)), or pass id_from_place=True"
    )


def _as_text(value: bytes) -> str:
    """Return an id as text; if that cannot be stored, its hash."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    return text if 0 < len(text) <= LONGEST_ID and is_storable(text) else _hashed(value)


def _hashed(value: bytes) -> str:
    return f"sha256:{hashlib.sha256(value).hexdigest()}"


@dataclass
class _Consuming:
    consumer: Any
    connect: Callable[[], Connection[Any]]
    handler: Handler
    rules: _Rules
    done: Consumed = field(default_factory=Consumed)
    connection: Connection[Any] | None = None
    # The offsets that may be committed, by topic and partition.
    passed: dict[tuple[str, int], int] = field(default_factory=dict)
    # When an unreadable batch of a topic and partition was last reported.
    told_at: dict[tuple[str, int], float] = field(default_factory=dict)

    def run(self) -> Consumed:
        try:
            while not self.rules.stop() and self._take(self.consumer.consume(_AT_ONCE, _POLL_SECONDS)):
                pass
        finally:
            if self.connection is not None:
                self.connection.close()
        return self.done

    def _take(self, messages: Sequence[Any]) -> bool:
        """Process records, and return whether to go on."""
        due, place = time.monotonic() + _COMMIT_SECONDS, 0
        try:
            for place, message in enumerate(messages):
                if (first := unreadable_from(message)) is not None:
                    self._note_unreadable(message, first)
                    continue
                if not _is_record(message):
                    continue
                if not self._process(_record(message)):
                    self._go_back(messages[place:])
                    return False
                self.passed[message.topic(), message.partition()] = message.offset() + 1
                if time.monotonic() >= due:
                    self._commit()
                    due = time.monotonic() + _COMMIT_SECONDS
        except BaseException:
            self._go_back(messages[place:])
            raise
        finally:
            # Also after an error: the records before it are processed, and need not be delivered again.
            self._commit()
        return True

    def _go_back(self, messages: Sequence[Any]) -> None:
        """Seek the consumer back to these records, which were not processed."""
        first: dict[tuple[str, int], int] = {}
        for message in messages:
            if message.error() is None:
                first.setdefault((message.topic(), message.partition()), message.offset())
        for (topic, partition), offset in first.items():
            try:
                self.consumer.seek(TopicPartition(topic, partition, offset))
            except KafkaException as error:
                # Another member has the partition by now, and begins at the committed offset.
                logger.info("%s/%d was not read again from %d: %s", topic, partition, offset, error.args[0].str())

    def _process(self, record: InboxRecord) -> bool:
        """Process a record, or add it to the dead table; False if neither was done, because of `stop`."""
        try:
            message_id = id_of(record, from_place=self.rules.by_place)
        except RecordWithoutId as error:
            return self._set_aside_without_id(record, error)
        failures, pause = 0, self.rules.back_off_seconds
        stood = Standing(record, message_id, busy_seconds=self.rules.busy_seconds, on_wait=self.rules.on_wait)
        while not self.rules.stop():
            try:
                with stood.watching(self._connected()):
                    self._transact(record, message_id)
            except InboxBusy as error:
                stood.behind_another(error)
                continue
            except MessageRepeated:
                self.done.repeated += 1
                return True
            except (HandlerFailed, HandlerUndone, psycopg.Error) as error:
                if not stood.because_of_the_database(error):
                    failures += 1
                    why = error.__cause__ or error
                    logger.warning("message %s failed, attempt %d: %s", message_id, failures, told(why))
                    if failures >= self.rules.attempts and self._set_aside(record, message_id, why, failures):
                        return True
            else:
                return True
            time.sleep(pause)
            pause = min(2 * pause, _MOST_BACK_OFF_SECONDS)
        return False

    def _set_aside_without_id(self, record: InboxRecord, error: RecordWithoutId) -> bool:
        """Add a record to the dead table by its place; False if it was not added, because of `stop`."""
        place = _as_text(f"{record.topic}/{record.partition}@{record.offset}".encode())
        pause = self.rules.back_off_seconds
        while not self.rules.stop():
            if self._set_aside(record, place, error, 0):
                logger.warning("message %s was set aside: %s", place, error)
                return True
            time.sleep(pause)
            pause = min(2 * pause, _MOST_BACK_OFF_SECONDS)
        return False

    def _note_unreadable(self, message: Any, first: int) -> None:
        """Report a batch that the client cannot decompress. The partition waits: the batch may hold records."""
        place, now = (message.topic(), message.partition()), time.monotonic()
        if now - self.told_at.get(place, float("-inf")) >= _UNREADABLE_SECONDS:
            self.told_at[place] = now
            logger.error(
                "%s/%s stands still at offset %d: the batch cannot be decompressed; raise receive.message.max.bytes of "
                "the consumer, or stop the group and step over it with 'thresher inbox step-over'",
                *place, first,
            )  # fmt: skip

    def _transact(self, record: InboxRecord, message_id: str) -> None:
        connection = self._connected()
        handled = False
        with connection.transaction(), self.rules.inbox.once(connection, message_id, self.rules.context) as first:
            if first:
                self._handle(connection, record)
                handled = True
        if first and not handled:
            raise HandlerUndone("the handler raised psycopg.Rollback: its work was rolled back")
        self.done.processed += first
        self.done.repeated += not first

    def _handle(self, connection: Connection[Any], record: InboxRecord) -> None:
        try:
            answer = self.handler(connection, record)
        except psycopg.Rollback:
            raise
        except Exception as error:
            if isinstance(error, psycopg.OperationalError) and connection.closed and _was_ended(error):
                # The server ended the session, or is down: not the handler's fault.
                raise
            raise HandlerFailed from error
        if inspect.isawaitable(answer):
            raise HandlerFailed from TypeError("the handler returned an awaitable: it must not be an async function")
        if connection.closed:
            raise HandlerFailed from RuntimeError("the handler closed the connection, or caught the error of its loss")

    def _set_aside(self, record: InboxRecord, message_id: str, error: BaseException, failures: int) -> bool:
        """Add a record to the dead table; return whether that succeeded. If not, the caller tries again."""
        inbox, context = self.rules.inbox, self.rules.context
        try:
            connection = self._connected()
            with connection.transaction(), inbox.once(connection, message_id, context) as first:
                if first:
                    set_aside(
                        connection, inbox.name, record,
                        context=context, message_id=message_id, reason=told(error), attempts=failures,
                    )  # fmt: skip
        except MessageRepeated:
            return True
        except Exception as problem:  # noqa: BLE001 - it is tried again, and logged each time
            logger.warning("message %s could not be set aside, and blocks its partition: %s", message_id, problem)
            return False
        self.done.set_aside += first
        return True

    def _connected(self) -> Connection[Any]:
        if self.connection is None or self.connection.closed:
            self.connection = None
            connection = require_connection(self.connect())
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.close()
                raise InvalidInput(
                    "connect returned a connection with an open transaction, which would never be committed: commit it "
                    "first, or use autocommit=True"
                )
            self.connection = connection
        return self.connection

    def _commit(self) -> None:
        if not self.passed:
            return
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in self.passed.items()]
        self.passed.clear()
        try:
            self.consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _MOVED | _PASSING:
                raise
            logger.info("offsets were not committed, so their records will be repeated: %s", error.args[0].str())


def _is_record(message: Any) -> bool:
    """Whether this is a record, and not an event of the client. Raises `KafkaException` for an error that lasts."""
    error = message.error()
    if error is not None and error.code() not in _PASSING:
        raise KafkaException(error)
    return error is None


def _was_ended(error: psycopg.OperationalError) -> bool:
    """Whether the server or the network ended a session, rather than a time-out that the handler exceeded."""
    return not isinstance(
        error, psycopg.errors.IdleInTransactionSessionTimeout | psycopg.errors.QueryCanceled
    )  # fmt: skip


def _record(message: Any) -> InboxRecord:
    return InboxRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=headers_of(message),
    )
