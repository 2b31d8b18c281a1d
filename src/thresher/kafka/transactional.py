"""A transactional producer whose every answer is certain or an error.

1. `init` fences every older producer with the same transactional id, and aborts the transaction it had open.
2. Between `begin` and `commit`, `produce` queues records without waiting and `flush` waits for all of them. A record
   that was not delivered is a fault. After a fault the producer is discarded, and the next producer's `init` aborts
   the transaction. (librdkafka was seen to hang in the transaction after an aborted one.) A transaction without faults
   may be aborted by `discard`, because no other transaction follows it.
3. `send_offsets` adds a consumer group's offsets to the transaction: they are committed with its records, or never.
4. `commit` and `send_offsets` succeed, are fenced, or have an unknown outcome: after an error, and for a commit after a
   slow answer. The client may have sent its request twice, and the late copy would affect the next transaction. The
   producer then refuses to go on, and its successor's `init` raises the epoch, which stops the late copy.
5. A slow answer to `send_offsets` leaves the producer `spent`: it may still commit, since a copy of the same offsets
   changes nothing in the same transaction, but begins no other.
"""

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat, starmap
from operator import length_hint
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from thresher.core.secrets import revealed_properties
from thresher.kafka.group.offsets import GroupOffset
from thresher.kafka.producer_problem import (
    CommitUnknown,
    InitBlocked,
    MemberFenced,
    OffsetsUnknown,
    ProducerProblem,
    ProducerRefused,
    raise_certain,
    records_unanswered,
)
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.transaction.timeouts import TransactionTimeouts

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
# How often `flush` checks for faults; and how long the fault that caused others may arrive after them.
_LOOK_SECONDS, _CAUSE_SECONDS = 0.2, 1.0
# How long a call may take beyond the time-out that the client was given.
_LATE_SECONDS = 1.0
_DEFAULTS: dict[str, Any] = {
    "linger.ms": 0,
    "compression.type": "lz4",
    # The Java client's partitioner: every writer sends a key to the same partition, the empty key included.
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
    "sticky.partitioning.linger.ms": 0,
    "topic.metadata.propagation.max.ms": 5_000,
    "log_level": 2,
}
# The errors by which `produce` refuses a record; and how many records are queued before another thread may run.
_UNTAKEN = (BufferError, KafkaException, TypeError, ValueError, UnicodeError, OverflowError)
_AT_ONCE = 1_000
# Topic, value, key, partition or -1, milliseconds or 0 for the time of sending, headers.
Produced = tuple[str, bytes | None, bytes | None, int, int, Any]
# The group has given the partitions to another member, or has removed this one.
_MEMBER_FENCED = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """The reason why a record was not delivered. `place` is the record's number, if the client's error names it."""

    refusal: Refusal
    why: str
    topic: str
    place: int | None = None
    key: bytes | None = None
    partition: int = -1


class TransactionalProducer:
    """One producer with one transactional id, for one thread."""

    def __init__(
        self,
        transactional_id: str,
        config: Mapping[str, Any],
        *,
        timeouts: TransactionTimeouts | None = None,
        make: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        """`make` creates the client from its properties, instead of confluent_kafka: for faults in tests."""
        self._timeouts = timeouts or TransactionTimeouts()
        undelivered: list[Undelivered] = []
        self._undelivered = undelivered
        self._errors: list[KafkaError] = []
        self._id = transactional_id
        # The call whose answer was not certain: the producer is not used again.
        self._in_doubt: str | None = None
        self._spent = False
        # The timestamp of records without one. 0 means this machine's clock, whose time a broker may refuse.
        self.now_ms = 0

        # Not a method: a reference cycle through the client would keep the client with its threads and connections.
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                partition = message.partition()
                fault = Undelivered(
                    refusal=refusal_of(error),
                    why=error.str(),
                    topic=message.topic() or "",
                    key=_bytes(message.key()),
                    partition=-1 if partition is None else partition,
                )
                undelivered.append(fault)

        callbacks = {"on_delivery": on_delivery, "error_cb": self._errors.append}
        asked = {**properties(transactional_id, config, self._timeouts), **callbacks, "logger": _logger}
        asked = revealed_properties(asked)
        self._producer: Any = Producer(asked) if make is None else make(asked)

    def init(self, topic: str) -> None:
        """Fence older producers and abort their transaction. `topic` is any existing topic.

        Raises `ProducerRefused` if a retry cannot help, `InitBlocked` if their transaction does not end.
        """
        # Connect first: the client looks for its coordinator every half second, not as soon as it is connected.
        self._do("connect", self._producer.list_topics, topic, self._timeouts.answer_seconds)
        deadline = time.monotonic() + self._timeouts.init_seconds
        while True:
            seconds = max(0.0, min(self._timeouts.blocked_seconds, deadline - time.monotonic()))
            try:
                self._do("init_transactions", self._producer.init_transactions, seconds)
            except ProducerProblem as problem:
                error = problem.__cause__.args[0] if isinstance(problem.__cause__, KafkaException) else None
                if error is not None and error.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                    raise InitBlocked(
                        f"init_transactions of {self._id}: its last transaction has not ended in {seconds:g} s"
                    ) from problem
                if error is None or not error.retriable() or time.monotonic() >= deadline:
                    raise
            else:
                return

    def begin(self) -> None:
        """Open a transaction."""
        self._require_certain()
        if self._spent:
            raise ProducerProblem(f"the producer {self._id} is spent: its offsets were answered late")
        self._undelivered.clear()
        self._do("begin_transaction", self._producer.begin_transaction)

    def produce(self, records: Iterable[tuple[int, Produced]]) -> None:
        """Queue records, each with its place. A record that the client refuses is a fault of the next `flush`."""
        produce, now = self._producer.produce, self.now_ms
        for place, record in records:
            topic, value, key, partition, timestamp, headers = record
            try:
                # Positional arguments are faster. No callback per record.
                produce(topic, value, key, partition, None, None, timestamp or now, headers)
            except _UNTAKEN as error:
                self._untaken(error, place, record)

    def produce_columns(
        self,
        topics: Sequence[str],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        partitions: Sequence[int],
        headers: Sequence[Any],
        *,
        first: int = 0,
        at_once: int = _AT_ONCE,
    ) -> None:
        """Queue records from columns, which is faster, without own timestamps. `first` is the first record's place.

        Other threads can run after each `at_once` records.
        """
        nothing, left = repeat(None), iter(topics)
        arguments = zip(
            left, values, keys, partitions, nothing, nothing, repeat(self.now_ms), headers, strict=False
        )  # fmt: skip
        # The loop runs in C, in chunks, so that other threads can run in between.
        calls = starmap(self._producer.produce, arguments)
        while length_hint(left):
            try:
                deque(islice(calls, at_once), maxlen=0)
            except _UNTAKEN as error:
                place = len(topics) - length_hint(left) - 1
                record = (topics[place], values[place], keys[place], partitions[place], 0, headers[place])
                self._untaken(error, first + place, record)

    def _untaken(self, error: Exception, place: int, record: Produced) -> None:
        """Record the fault of a record that the client refused. If the client's queue was full, try again."""
        if isinstance(error, BufferError):
            self._make_room(place, record)
            return
        if isinstance(error, KafkaException):
            reason = error.args[0]
            refusal, why = refusal_of(reason), reason.str()
        else:
            refusal, why = Refusal.ROW, f"it cannot be a record: {error}"
        self._undelivered.append(Undelivered(refusal=refusal, why=why, topic=record[0], place=place))

    def _make_room(self, place: int, record: Produced) -> None:
        """Wait until the client's full queue is empty, and try again. A record that does not fit then is too large."""
        if len(self._producer) == 0:
            fault = Undelivered(
                refusal=Refusal.SIZE, why="it does not fit into the client's queue", topic=record[0], place=place
            )
            self._undelivered.append(fault)
            return
        self.flush()
        self.produce([(place, record)])

    def flush(self) -> list[Undelivered]:
        """Wait until the broker has answered for every record, and return the faults."""
        seconds = self._timeouts.flush_seconds
        deadline = time.monotonic() + seconds
        while len(self._producer):
            if time.monotonic() >= deadline:
                if self._undelivered:
                    break
                self._in_doubt = "flush"
                self._producer.purge()
                self._do("flush", self._producer.flush, _CAUSE_SECONDS)
                owing = Counter((fault.topic, fault.partition) for fault in self._undelivered)
                raise records_unanswered(owing, seconds, _last(self._errors))
            self._do("flush", self._producer.flush, _LOOK_SECONDS)
            if any(fault.refusal is not Refusal.TRANSIENT for fault in _causes(self._undelivered)):
                # The transaction has failed already, and the client may take long to answer for the other records.
                break
            if self._undelivered:
                deadline = min(deadline, time.monotonic() + _CAUSE_SECONDS)
        self._do("poll", self._producer.poll, 0)
        return _causes(self._undelivered) or list(self._undelivered)

    def await_sent(self, seconds: float) -> bool:
        """Wait; return whether the broker has answered for every record. A later `flush` returns the faults."""
        return bool(self._do("flush", self._producer.flush, seconds) == 0)

    @property
    def unhandled_faults(self) -> tuple[Undelivered, ...]:
        """The faults that the caller has not forgiven."""
        return tuple(self._undelivered)

    def forget_faults(self) -> None:
        """Forget the faults: the caller has dealt with those records.

        If the client requires an abort because of one of them, it refuses further records or the commit.
        """
        self._undelivered.clear()

    def send_offsets(self, offsets: Iterable[GroupOffset], group_metadata: object) -> None:
        """Add a group's offsets to the open transaction: `commit` commits them with the records.

        `group_metadata` is a consumer's `consumer_group_metadata()`, or `group_metadata()` of a sender that is no
        member. Raises `ProducerFenced`, `MemberFenced`, `ProducerRefused`, or `OffsetsUnknown` if the outcome is
        unknown.
        """
        self._require_certain()
        sent = [TopicPartition(each.topic, each.partition, each.offset, each.metadata) for each in offsets]
        if not sent:
            raise ValueError("send_offsets needs at least one offset: the client would send nothing, and succeed")
        call, seconds = self._producer.send_offsets_to_transaction, self._timeouts.answer_seconds
        bounded = partial(_returning_within, seconds + _LATE_SECONDS, call)
        took = self._ask_once("send_offsets", OffsetsUnknown, bounded, sent, group_metadata, seconds)
        self._spent = self._spent or took > self._timeouts.certain_offsets_seconds
        self._in_doubt = None

    @property
    def spent(self) -> bool:
        """Whether no transaction can follow the one that is open."""
        return self._spent

    def commit(self) -> None:
        """Commit. Raises `CommitUnknown` if the outcome is unknown. Refuses if a record was not delivered."""
        self._require_certain()
        self._do("poll", self._producer.poll, 0)
        if self._undelivered:
            raise ProducerProblem(f"a record of the transaction was refused: {self._undelivered[0].why}")
        call, seconds = self._producer.commit_transaction, self._timeouts.answer_seconds
        took = self._ask_once("commit", CommitUnknown, call, seconds)
        if took > self._timeouts.certain_seconds:
            raise CommitUnknown(f"commit: it took {took:.1f} s, so the client may have sent it twice")
        self._in_doubt = None

    def _ask_once(self, what: str, unknown: type[ProducerProblem], call: Any, *arguments: Any) -> float:
        """Make a call, and return how many seconds its answer took. An error of the client is raised as `unknown`.

        The producer refuses further calls until the caller accepts the answer as certain.
        """
        self._in_doubt = what
        self._errors.clear()
        began = time.monotonic()
        try:
            call(*arguments)
            self._producer.poll(0)
        except KafkaException as caught:
            error: KafkaError = caught.args[0]
            raise_certain(what, error, self._id, self._timeouts, _last(self._errors))
            if unknown is OffsetsUnknown and refusal_of(error) is Refusal.TOPIC_DENIED:
                # A commit may fail with the same code, because of a record: that is the fault of the record.
                raise ProducerRefused(
                    f"the broker refuses the {what} of {self._id}: {error.str()}; grant it Read on the topic"
                ) from caught
            kind = MemberFenced if error.code() in _MEMBER_FENCED else unknown
            raise kind(f"{what}: {error.str()}") from caught
        took = time.monotonic() - began
        if self._errors:
            raise unknown(f"{what}: the client met an error meanwhile: {self._errors[0].str()}")
        if self._undelivered:
            raise unknown(f"{what}: a record failed meanwhile: {self._undelivered[0].why}")
        return took

    def _require_certain(self) -> None:
        if self._in_doubt is not None:
            raise ProducerProblem(
                f"the outcome of the {self._in_doubt} is unknown, so producer {self._id} cannot be used again"
            )

    def discard(self, *, abort: bool = False) -> None:
        """Drop the queued records. The next producer's `init`, or the broker's time-out, aborts the transaction.

        With `abort`, the transaction is aborted now, so that no reader waits for it. This is allowed only if all of its
        records were answered for. Whether the abort succeeds does not matter. Idempotent.
        """
        client, self._producer = self._producer, None
        if client is None:
            return
        if abort:
            with contextlib.suppress(KafkaException):
                client.abort_transaction(self._timeouts.answer_seconds)
        client.purge(blocking=False)

    def partitions(self, topic: str) -> int | KafkaError:
        """Return a topic's number of partitions as the cluster knows it now, or the topic's error."""
        leaders = self.leaders(topic)
        return leaders if isinstance(leaders, KafkaError) else len(leaders)

    def leaders(self, topic: str) -> dict[int, int] | KafkaError:
        """Return the leader of each partition of a topic, -1 for none; or the topic's error."""
        try:
            found = self._producer.list_topics(topic, timeout=self._timeouts.answer_seconds).topics.get(topic)
        except KafkaException as error:
            raise ProducerProblem(f"the cluster did not return the status of {topic}: {error.args[0].str()}") from error
        if found is None:
            return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        if isinstance(found.error, KafkaError):
            return found.error
        return {number: facts.leader for number, facts in found.partitions.items()}

    def _do(self, what: str, call: Any, *arguments: Any) -> Any:
        """Make a call of the client, and raise its errors as ours. After a fatal error every call raises."""
        try:
            return call(*arguments)
        except KafkaException as error:
            raise_certain(what, error.args[0], self._id, self._timeouts, _last(self._errors))
            raise ProducerProblem(f"{what}: {error.args[0].str()}{_last(self._errors)}") from error


def _returning_within(seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
    """Make a call that may never return: after a restart of the coordinator, librdkafka may ignore the time-out.

    The call's thread, and the producer that it uses, are then abandoned; the outcome is unknown.
    """
    outcome: list[BaseException | None] = []
    returned = threading.Event()

    def run() -> None:
        try:
            call(*arguments)
            outcome.append(None)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            outcome.append(error)
        finally:
            returned.set()

    threading.Thread(target=run, name="thresher-send-offsets", daemon=True).start()
    if not returned.wait(seconds):
        raise OffsetsUnknown(f"send_offsets: the client did not return in {seconds:.1f} s")
    if outcome[0] is not None:
        raise outcome[0]


def _causes(faults: Iterable[Undelivered]) -> list[Undelivered]:
    """Return the faults that were not caused by another record's fault."""
    return [fault for fault in faults if fault.refusal is not Refusal.CAUSED_BY_ANOTHER]


def _last(errors: Sequence[KafkaError]) -> str:
    return f"; last error: {errors[-1].str()}" if errors else ""


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def properties(
    transactional_id: str, config: Mapping[str, Any], timeouts: TransactionTimeouts | None = None
) -> dict[str, Any]:
    """Return the client's properties: defaults, then the configuration, then those that the guarantee depends on."""
    return {**_DEFAULTS, **config, **_ours(timeouts or TransactionTimeouts()), "transactional.id": transactional_id}


def _ours(timeouts: TransactionTimeouts) -> dict[str, Any]:
    """Return the properties that the guarantee depends on."""
    return {
        "enable.idempotence": True,
        "enable.gapless.guarantee": False,
        "acks": "all",
        "delivery.report.only.error": True,
        **timeouts.properties(),
    }


# The properties that a configuration must not change.
GUARDED = frozenset({*_ours(TransactionTimeouts()), "transactional.id", "request.required.acks", "delivery.timeout.ms"})
