"""A Kafka consumer tied to an inbox: each record is processed once, in a transaction, and its offset committed after.

1. Records are processed one after another, in the order of their partitions. Each has a transaction: the row in the
   inbox, what the handler writes, commit. Offsets are committed behind that, for many records at once.
2. A crash between commits leads to repeats, which the inbox tells.
3. A handler that keeps failing for a record does not stop the others: the record is set aside with the reason.
4. A database that is away is waited for. Nothing is committed meanwhile.

The consumer is the caller's, subscribed, and must not commit by itself: `enable.auto.commit` is false.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from psycopg import Connection

from thresher.core.errors import InvalidInput
from thresher.inbox.dead import InboxRecord, set_aside
from thresher.inbox.inbox import LONGEST_ID, Inbox, admitted_context
from thresher.inbox.problem import InboxBusy, MessageRepeated, RecordWithoutId
from thresher.outbox.message import EVENT_ID

logger = logging.getLogger(__name__)

_AT_ONCE, _POLL_SECONDS = 500, 0.5
# Offsets are committed after so long at the latest, while records come.
_COMMIT_SECONDS = 1.0
_LEAST_REST_SECONDS, _MOST_REST_SECONDS = 0.1, 5.0
# Told by the client, and nothing to end for.
_PASSING = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
# Another member has the partitions by now, or will: what was processed is a repeat for it.
_MOVED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._STATE,
    }
)

Handler = Callable[[Connection[Any], InboxRecord], object]


@dataclass
class Consumed:
    """What was done: processed for the first time, repeats that were skipped, and set aside."""

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
) -> Consumed:
    """Process the records of a subscribed consumer until `stop` says so, and return what was done.

    `connect` returns a connection to the application's database, which `handler` gets with each record. A record's id
    is its header `event-id`; one without is refused with `RecordWithoutId`, unless `id_from_place`: then its topic,
    partition and offset are its id, which tells no record that its sender sent twice. After `attempts` failures of the
    handler the record is set aside. Raises `KafkaException` where the broker refuses the consumer.
    """
    if attempts < 1:
        raise InvalidInput(f"attempts is {attempts}: one at least is needed")
    rules = _Rules(inbox or Inbox(), admitted_context(context), id_from_place, attempts, stop)
    return _Consuming(consumer, connect, handler, rules).run()


def id_of(record: InboxRecord, *, from_place: bool = False) -> str:
    """Return the id of a record. Raises `RecordWithoutId`."""
    for name, value in record.headers:
        if name == EVENT_ID and value:
            # An id that is no text, or a long one, is told from others all the same.
            text = value.decode(errors="backslashreplace").replace("\0", "\\x00")
            return text if len(text) <= LONGEST_ID else f"sha256:{hashlib.sha256(value).hexdigest()}"
    if from_place:
        return f"{record.topic}/{record.partition}/{record.offset}"
    raise RecordWithoutId(
        f"the record at offset {record.offset} of {record.topic}/{record.partition} has no header {EVENT_ID}: have its "
        "sender set one (Outbox(event_ids=True)), or give id_from_place=True"
    )


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

    def run(self) -> Consumed:
        try:
            while not self.rules.stop():
                self._take(self.consumer.consume(_AT_ONCE, _POLL_SECONDS))
        finally:
            # Of an error too: what was processed before it need not come again.
            self._commit()
            if self.connection is not None:
                self.connection.close()
        return self.done

    def _take(self, messages: Sequence[Any]) -> None:
        due = time.monotonic() + _COMMIT_SECONDS
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() not in _PASSING:
                    raise KafkaException(error)
                continue
            if not self._process(_record(message)):
                break
            self.passed[message.topic(), message.partition()] = message.offset() + 1
            if time.monotonic() >= due:
                self._commit()
                due = time.monotonic() + _COMMIT_SECONDS
        self._commit()

    def _process(self, record: InboxRecord) -> bool:
        """Process a record, or set it aside; False where it was not, because of `stop`."""
        message_id = id_of(record, from_place=self.rules.by_place)
        failures, rest = 0, _LEAST_REST_SECONDS
        while not self.rules.stop():
            try:
                self._transact(record, message_id)
            except InboxBusy as error:
                logger.info("%s", error)
                continue
            except MessageRepeated:
                self.done.repeated += 1
                return True
            except Exception as error:  # noqa: BLE001 - whatever a handler raises
                if self._is_lost():
                    logger.warning("the database is away, and waited for: %s", error)
                else:
                    failures += 1
                    logger.warning("message %s failed, attempt %d: %s", message_id, failures, error)
                    if failures >= self.rules.attempts and self._set_aside(record, message_id, error, failures):
                        return True
                time.sleep(rest)
                rest = min(2 * rest, _MOST_REST_SECONDS)
            else:
                return True
        return False

    def _transact(self, record: InboxRecord, message_id: str) -> None:
        connection = self._connected()
        with connection.transaction(), self.rules.inbox.once(connection, message_id, self.rules.context) as first:
            if first:
                self.handler(connection, record)
        self.done.processed += first
        self.done.repeated += not first

    def _set_aside(self, record: InboxRecord, message_id: str, error: Exception, failures: int) -> bool:
        """Set a record aside, and return whether that succeeded: else it is tried again."""
        inbox, context = self.rules.inbox, self.rules.context
        try:
            connection = self._connected()
            with connection.transaction(), inbox.once(connection, message_id, context) as first:
                if first:
                    reason = f"{type(error).__name__}: {error}"
                    set_aside(
                        connection, inbox.name, record,
                        context=context, message_id=message_id, reason=reason, attempts=failures,
                    )  # fmt: skip
        except (psycopg.Error, InboxBusy) as problem:
            logger.warning("message %s could not be set aside: %s", message_id, problem)
            return False
        self.done.set_aside += 1
        return True

    def _connected(self) -> Connection[Any]:
        if self.connection is None or self.connection.closed:
            self.connection = self.connect()
        return self.connection

    def _is_lost(self) -> bool:
        """Whether there is no connection, or it is broken: then no handler is to blame."""
        if self.connection is not None and not self.connection.closed:
            return False
        self.connection = None
        return True

    def _commit(self) -> None:
        if not self.passed:
            return
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in self.passed.items()]
        try:
            self.consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _MOVED | _PASSING:
                raise
            logger.info("offsets were not committed, and their records will be repeats: %s", error.args[0].str())
        self.passed.clear()


def _record(message: Any) -> InboxRecord:
    return InboxRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in message.headers() or ()),
    )


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
