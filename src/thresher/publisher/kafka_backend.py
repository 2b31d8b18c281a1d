"""Sends messages to Kafka, and waits until all in-sync replicas have them, or returns at once.

1. There is one idempotent producer with acks=all: order per key is kept, and the client's retries cause no duplicates.
2. `kafka` returns once every message of a call was answered for. Messages that were refused are in `PublishFailed`, and
   not in Kafka. If some were not answered for in time, or refused so late that the client may have sent them before, it
   is `PublishUnknown`: those may be in Kafka.
3. `kafka_async` returns at once, as long as the client's queue has room. Failures are logged and counted at the next
   call, and `flush` then returns False. A process that dies loses unsent messages. For messages that must not be lost,
   use the outbox.
"""

import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from thresher.core.errors import InvalidInput, ThresherError, shorten
from thresher.core.fork_safe_lock import ForkSafeLock
from thresher.core.secrets import kept_properties, revealed_properties
from thresher.kafka.property import without_value
from thresher.kafka.refusal import RETRIES, is_refusal, outcome
from thresher.outbox.admission import InvalidMessage
from thresher.outbox.message import Message

logger = logging.getLogger(__name__)
_client = logging.getLogger(f"{__name__}.client")
_client.setLevel(logging.CRITICAL)

_DEFAULTS: dict[str, Any] = {
    "linger.ms": 2,
    "compression.type": "lz4",
    "log_level": 2,
    "message.timeout.ms": 30_000,
    # The relay's partitioner: a key has the same partition, whichever backend sends.
    "partitioner": "murmur2_random",
}
_OURS: dict[str, Any] = {"enable.idempotence": True, "acks": "all", **RETRIES}
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_POLL_SECONDS = 0.1
_NAMED = 5


# A message, and the reason why it failed.
Failed = tuple[Message, str]


class PublishFailed(ThresherError):  # noqa: N818
    """Messages were refused, each with its reason: they are not in Kafka. All other messages of the call were sent."""

    def __init__(self, refused: Sequence[Failed], unknown: Sequence[Failed] = ()) -> None:
        super().__init__(refused, unknown)
        self.refused, self.unknown = tuple(refused), tuple(unknown)

    @property
    def failed(self) -> tuple[Failed, ...]:
        """The messages that were refused, then those of which it is unknown whether they were sent."""
        return self.refused + self.unknown

    def __str__(self) -> str:
        parts = []
        if self.refused:
            parts.append(f"{len(self.refused)} messages were refused and not sent: {_named(self.refused)}")
        if self.unknown:
            parts.append(
                f"whether {len(self.unknown)} messages were sent is unknown, and sending them again may repeat them: "
                f"{_named(self.unknown)}"
            )
        return "; ".join(parts)


class PublishUnknown(PublishFailed):
    """Messages were not answered for in time (`unknown`): they may or may not be in Kafka. Others may be `refused`."""

    retryable = True


class KafkaBackend:
    """Sends by one producer, which is created at the first message. Safe from any thread."""

    def __init__(self, properties: Mapping[str, Any], *, waits: bool) -> None:
        self._properties = kept_properties({**_DEFAULTS, **properties, **_OURS})
        self._waits = waits
        self._lock = ForkSafeLock()
        # Belongs to the process `_pid`: in a forked child the client's threads are missing.
        self._producer: Producer | None = None
        self._pid = 0
        # How many messages failed for which no call waited.
        self.failures = 0
        _backends.add(self)

    def publish(self, messages: Sequence[Message], connection: Any) -> None:  # noqa: ARG002 - it needs none
        """Send messages. Raises `PublishFailed` or `PublishUnknown`.

        Raises `InvalidMessage` for a partition key, before anything is sent.
        """
        for message in messages:
            if message.partition_key is not None:
                rule = "only an outbox in Deimos' shape can hold it; give the partition itself"
                raise InvalidMessage("partition_key", shorten(message.partition_key), rule)
        if self._waits:
            refused: list[Failed] = []
            unknown: list[Failed] = []
            for message, error in zip(messages, self.send(messages), strict=True):
                if error is not None:
                    (refused if is_refusal(error) else unknown).append((message, error.str()))
            if refused or unknown:
                raise (PublishUnknown if unknown else PublishFailed)(refused, unknown)
            return
        producer = self._made()
        for message in messages:
            self._produce(producer, message, self._unwatched(message))
        producer.poll(0)

    def send(self, messages: Sequence[Message]) -> list[KafkaError | None]:
        """Send messages in order, and wait; return each message's error, or None if it was acked."""
        producer = self._made()
        call = _Call(len(messages))
        for place, message in enumerate(messages):
            self._produce(producer, message, call.answered(place))
        while not call.done.is_set():
            producer.poll(_POLL_SECONDS)
        return call.errors

    def check(self) -> None:
        """Raise `InvalidInput` for wrong producer properties. Nothing is sent."""
        self._new()

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait for all outstanding answers; return whether they came in time and no message has ever failed.

        A forked child has nothing to wait for: only the parent gets the answers to the parent's messages.
        """
        producer = self._producer if self._pid == os.getpid() else None
        left = 0 if producer is None else producer.flush(-1 if timeout_seconds is None else timeout_seconds)
        return left == 0 and self.failures == 0

    def close(self) -> None:
        """Flush and drop the producer. A forked child drops the parent's producer without a flush."""
        self.flush()
        with self._lock:
            self._producer = None

    def keep_parents_producer(self) -> None:
        """Add a reference that is never removed to the producer, if it was made before the fork of this process."""
        if self._producer is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))

    def _made(self) -> Producer:
        with self._lock:
            if self._producer is None or self._pid != os.getpid():
                self._producer, self._pid = self._new(), os.getpid()
            return self._producer

    def _new(self) -> Producer:
        try:
            return Producer(revealed_properties(self._properties), logger=_client)
        except KafkaException as error:
            raise InvalidInput(f"the producer's properties: {without_value(error.args[0].str())}") from None

    def _produce(self, producer: Producer, message: Message, answered: Callable[..., None]) -> None:
        headers = list(message.headers.items() if isinstance(message.headers, Mapping) else message.headers)
        while True:
            try:
                producer.produce(
                    message.topic,
                    value=message.value,
                    key=message.key,
                    partition=-1 if message.partition is None else message.partition,
                    on_delivery=answered,
                    # For the client 0 means now: a timestamp of 1970-01-01 00:00 becomes one millisecond later.
                    timestamp=0 if message.timestamp is None else max(1, (message.timestamp - _EPOCH) // _MILLISECOND),
                    headers=headers,
                )
            except BufferError:
                # The client's queue is full: answers of the broker make room.
                producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].fatal():
                    # After a fatal error the producer is useless: the next call creates another one.
                    self._producer = None
                answered(error.args[0], None)
                return
            else:
                return

    def _unwatched(self, message: Message) -> Callable[[KafkaError | None, Any], None]:
        def answered(given: KafkaError | None, record: Any) -> None:
            if given is not None:
                error = outcome(given, record)
                with self._lock:
                    self.failures += 1
                text = "was refused and not sent" if is_refusal(error) else "may or may not have been sent"
                logger.error("a message for %s %s: %s", message.topic, text, error.str())

        return answered


_backends: weakref.WeakSet[KafkaBackend] = weakref.WeakSet()


def _keep_parents_producers() -> None:
    """Destroy no producer of the parent in a forked child: that waits for threads which only the parent has."""
    for backend in tuple(_backends):
        backend.keep_parents_producer()


os.register_at_fork(after_in_child=_keep_parents_producers)


def _named(failed: Sequence[Failed]) -> str:
    return "; ".join(f"{each.topic}, key {shorten(each.key)}: {why}" for each, why in failed[:_NAMED])


class _Call:
    """The messages of one call, until the broker has answered for all of them."""

    def __init__(self, messages: int) -> None:
        self._left, self._lock = messages, threading.Lock()
        # By the position of the message in the call.
        self.errors: list[KafkaError | None] = [None] * messages
        self.done = threading.Event()
        if not messages:
            self.done.set()

    def answered(self, place: int) -> Callable[[KafkaError | None, Any], None]:
        def answered(error: KafkaError | None, record: Any) -> None:
            # The poll of another thread may run this callback.
            with self._lock:
                self.errors[place] = None if error is None else outcome(error, record)
                self._left -= 1
                if not self._left:
                    self.done.set()

        return answered
