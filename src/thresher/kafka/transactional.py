"""A transactional producer whose every answer is certain or an error.

1. `init` fences whoever used the transactional id before, and ends what it had open.
2. Between `begin` and `commit`, `produce` takes records without waiting, and `flush` waits for all of them; records
   that were not delivered are faults. Nothing is ever aborted: after a fault the producer is discarded, and the next
   one's `init` ends the transaction. (librdkafka was seen to hang in the transaction after an aborted one.)
3. A `commit` during which the client met an error, or that took long, has an unknown outcome: the client may have sent
   its request twice, and the one that comes late hits the next transaction. The producer must not be used again.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat, starmap
from operator import length_hint
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from thresher.core.errors import ThresherError
from thresher.kafka.refusal import Refusal, refusal_of

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
_REQUEST_SECONDS = 30.0
# Below socket.timeout.ms: what is asked for has not been given up by then.
_ANSWER_SECONDS = 8.0
# A connection that breaks makes the client repeat its request without a word; but not before its back-off, give or take
# a fifth. Within less, what was answered was asked for once.
_REPEAT_SECONDS = 2.0
_CERTAIN_SECONDS = 0.75 * _REPEAT_SECONDS
_FLUSH_SECONDS, _LOOK_SECONDS = 10.0, 0.2
# How long the cause of a failure may come behind what it took along.
_CAUSE_SECONDS = 1.0
# What the guarantee rests on.
_OURS: dict[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": False,
    "acks": "all",
    "delivery.report.only.error": True,
    "transaction.timeout.ms": 15_000,
    "message.timeout.ms": 12_000,
    "socket.timeout.ms": 10_000,
    "retry.backoff.ms": int(_REPEAT_SECONDS * 1000),
    "retry.backoff.max.ms": int(_REPEAT_SECONDS * 1000),
}
_DEFAULTS: dict[str, Any] = {
    "linger.ms": 0,
    "compression.type": "lz4",
    # As the Java client does it: a key's partition is the same whoever writes, and the empty key has one too.
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
    "sticky.partitioning.linger.ms": 0,
    "topic.metadata.propagation.max.ms": 5_000,
    "log_level": 2,
}
# What `produce` raises about a record; and how many records are handed over before another thread may run.
_UNTAKEN = (BufferError, KafkaException, TypeError, ValueError, UnicodeError, OverflowError)
_AT_ONCE = 1_000
# Topic, value, key, partition or -1, milliseconds or 0 for the time of sending, headers.
Produced = tuple[str, bytes | None, bytes | None, int, int, Any]
# What a configuration may not change.
GUARDED = frozenset({*_OURS, "transactional.id", "request.required.acks", "delivery.timeout.ms"})


class ProducerProblem(ThresherError):  # noqa: N818
    """The producer cannot go on; a new one, after recovery, may."""

    retryable: ClassVar[bool] = True


class CommitUnknown(ProducerProblem):
    """Whether the transaction ended as asked is not known."""


class ProducerFenced(ProducerProblem):
    """Another producer with the same transactional id has taken over, or the client can do nothing any more."""


class ProducerRefused(ThresherError):  # noqa: N818
    """The broker will not have this producer: credentials, permissions or limits. Somebody has to act."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """Why a record was not delivered; its place where that is known, its topic where the fault is the topic's."""

    refusal: Refusal
    why: str
    topic: str
    place: int | None = None
    key: bytes | None = None


class TransactionalProducer:
    """One producer with one transactional id, for one thread."""

    def __init__(
        self, transactional_id: str, config: Mapping[str, Any], *, make: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        """`make` returns the client for its properties, in place of the real one: for faults in tests."""
        undelivered: list[Undelivered] = []
        self._undelivered = undelivered
        self._errors: list[KafkaError] = []
        self._id = transactional_id
        # What a record without a time of its own gets; 0 leaves it to this machine's clock, which a broker may refuse.
        self.now_ms = 0

        # Not a method: a cycle through the client would keep it, its threads and its connections.
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                fault = Undelivered(
                    refusal=refusal_of(error), why=error.str(), topic=message.topic() or "", key=_bytes(message.key())
                )
                undelivered.append(fault)

        callbacks = {"on_delivery": on_delivery, "error_cb": self._errors.append}
        asked = {**properties(transactional_id, config), **callbacks, "logger": _logger}
        self._producer = Producer(asked) if make is None else make(asked)

    def init(self, topic: str) -> None:
        """Fence, and end what is open; `topic` is any that is there. Raises `ProducerRefused` where waiting is vain."""
        # Connected first: the client looks for its coordinator every half second, and not when a connection is up.
        self._do("connect", self._producer.list_topics, topic, _ANSWER_SECONDS)
        self._do("init_transactions", self._producer.init_transactions, _REQUEST_SECONDS)

    def begin(self) -> None:
        """Open a transaction."""
        self._undelivered.clear()
        self._do("begin_transaction", self._producer.begin_transaction)

    def produce(self, records: Iterable[tuple[int, Produced]]) -> None:
        """Hand over records, each with its place; what is wrong with one at once is a fault of the coming flush."""
        produce, now = self._producer.produce, self.now_ms
        for place, record in records:
            topic, value, key, partition, timestamp, headers = record
            try:
                # By position, which is quicker; no callback of its own.
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
    ) -> None:
        """Do the same for records without a time of their own, the first of which has this place: it is quicker."""
        nothing, left = repeat(None), iter(topics)
        arguments = zip(
            left, values, keys, partitions, nothing, nothing, repeat(self.now_ms), headers, strict=False
        )  # fmt: skip
        # No line of Python for a record; but other threads want their turn.
        calls = starmap(self._producer.produce, arguments)
        while length_hint(left):
            try:
                deque(islice(calls, _AT_ONCE), maxlen=0)
            except _UNTAKEN as error:
                place = len(topics) - length_hint(left) - 1
                record = (topics[place], values[place], keys[place], partitions[place], 0, headers[place])
                self._untaken(error, first + place, record)

    def _untaken(self, error: Exception, place: int, record: Produced) -> None:
        """Note what is wrong with a record that the client did not take; where its queue was full, try again."""
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
        """Wait for the client's full queue to empty, and try again. What does not fit an empty one is too large."""
        if len(self._producer) == 0:
            fault = Undelivered(
                refusal=Refusal.SIZE, why="it does not fit into the client's queue", topic=record[0], place=place
            )
            self._undelivered.append(fault)
            return
        self.flush()
        self.produce([(place, record)])

    def flush(self) -> list[Undelivered]:
        """Wait until the broker has answered for every record, and return what was not delivered."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        while len(self._producer):
            if time.monotonic() >= deadline:
                if self._undelivered:
                    break
                raise ProducerProblem(
                    f"{len(self._producer)} records were not answered for in {_FLUSH_SECONDS:g} s{self._last_error()}"
                )
            self._do("flush", self._producer.flush, _LOOK_SECONDS)
            if any(fault.refusal is not Refusal.MOMENT for fault in self._causes()):
                # All is lost already, and the client may keep the others for long.
                break
            if self._undelivered:
                deadline = min(deadline, time.monotonic() + _CAUSE_SECONDS)
        self._do("poll", self._producer.poll, 0)
        return self._causes() or list(self._undelivered)

    def await_sent(self, seconds: float) -> bool:
        """Wait for so long, and say whether the broker has answered for everything; what failed, a flush will tell."""
        return bool(self._do("flush", self._producer.flush, seconds) == 0)

    def _causes(self) -> list[Undelivered]:
        return [fault for fault in self._undelivered if fault.refusal is not Refusal.NEIGHBOUR]

    @property
    def unforgiven(self) -> tuple[Undelivered, ...]:
        """What has failed and was not forgiven."""
        return tuple(self._undelivered)

    def forgive(self) -> None:
        """Forget the records that failed: who asks for this has dealt with them. Where the client demands an abort
        because of one, it takes no other record or does not commit."""
        self._undelivered.clear()

    def commit(self) -> None:
        """Commit. Raises `CommitUnknown` where that is not certain, and nothing is committed that lacks a record."""
        self._do("poll", self._producer.poll, 0)
        if self._undelivered:
            raise ProducerProblem(f"a record of the transaction was refused: {self._undelivered[0].why}")
        self._errors.clear()
        began = time.monotonic()
        try:
            self._producer.commit_transaction(_ANSWER_SECONDS)
            self._producer.poll(0)
        except KafkaException as error:
            self._raise_refused(error.args[0])
            self._raise_fenced("commit", error.args[0])
            raise CommitUnknown(f"commit: {error.args[0].str()}") from error
        took = time.monotonic() - began
        if self._errors:
            raise CommitUnknown(f"commit: the client met an error meanwhile: {self._errors[0].str()}")
        if took > _CERTAIN_SECONDS:
            raise CommitUnknown(f"commit: it took {took:.1f} s")
        if self._undelivered:
            raise CommitUnknown(f"commit: a record failed meanwhile: {self._undelivered[0].why}")

    def discard(self) -> None:
        """Forget what is queued: another producer takes over, and its `init` ends the transaction."""
        self._producer.purge(blocking=False)
        del self._producer

    def partitions(self, topic: str) -> int | KafkaError:
        """Ask the cluster how many partitions a topic has; the topic's error where it is not there for us."""
        try:
            found = self._producer.list_topics(topic, timeout=_ANSWER_SECONDS).topics.get(topic)
        except KafkaException as error:
            raise ProducerProblem(f"the cluster did not say how {topic} stands: {error.args[0].str()}") from error
        if found is None:
            return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return found.error if found.error is not None else len(found.partitions)

    def _do(self, what: str, call: Any, *arguments: Any) -> Any:
        """Make a call of the client's, any of which raises once it can do nothing any more."""
        try:
            return call(*arguments)
        except KafkaException as error:
            self._raise_refused(error.args[0])
            self._raise_fenced(what, error.args[0])
            raise ProducerProblem(f"{what}: {error.args[0].str()}{self._last_error()}") from error

    def _raise_refused(self, error: KafkaError) -> None:
        if refusal_of(error) is Refusal.CLIENT:
            if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                what = f"raise the broker's transaction.max.timeout.ms to at least {_OURS['transaction.timeout.ms']}"
            else:
                what = "grant it Write and Describe on its transactional ids and topics, or mend its credentials"
            raise ProducerRefused(f"the broker refuses the producer {self._id}: {error.str()}; {what}")

    def _raise_fenced(self, what: str, error: KafkaError) -> None:
        if error.fatal() or refusal_of(error) is Refusal.FENCED:
            raise ProducerFenced(f"{what}: {error.str()}{self._last_error()}")

    def _last_error(self) -> str:
        return f"; last error: {self._errors[-1].str()}" if self._errors else ""


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def properties(transactional_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's properties: what was asked for, and over it what the guarantee rests on."""
    return {**_DEFAULTS, **config, **_OURS, "transactional.id": transactional_id}
