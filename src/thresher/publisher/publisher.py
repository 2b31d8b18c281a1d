"""Publishes messages: encodes and checks all of them, then passes them to the chosen backend.

If any message cannot be encoded, or can never be accepted by Kafka, an error is raised before any message is written or
sent. All other guarantees are the backend's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka.serialization import MessageField

from thresher.core.errors import InvalidInput, shorten
from thresher.core.fork_safe_lock import ForkSafeLock
from thresher.core.secrets import kept_properties
from thresher.outbox.admission import Admission, InvalidMessage, Limits
from thresher.outbox.message import Message
from thresher.outbox.shape import Shape
from thresher.outbox.writer import Outbox
from thresher.publisher.choice import Choice, Kind, chosen, effective
from thresher.publisher.encoding import Encoder, as_is, encoded
from thresher.publisher.kafka_backend import KafkaBackend
from thresher.publisher.memory_backend import MemoryBackend
from thresher.publisher.outbox_backend import OutboxBackend
from thresher.publisher.port import Backend


class Publisher:
    """Publishes an application's messages. Safe from any thread. As a context manager, it flushes and closes."""

    def __init__(
        self,
        *,
        kafka: Mapping[str, Any] | None = None,
        outbox: Outbox | None = None,
        backend: str | Backend | None = None,
        value: Encoder = as_is,
        key: Encoder = as_is,
        limits: Limits | None = None,
    ) -> None:
        """`kafka` are the properties of confluent-kafka's producer, for the backends `kafka` and `kafka_async`.

        `value` and `key` are encoders; any serializer of confluent-kafka works. `backend` is this publisher's own.
        """
        self._kafka: Mapping[str, Any] | None = kept_properties(kafka)
        self._outbox = outbox
        self._own: Choice | None = None if backend is None else chosen(backend)
        self._value, self._key = value, key
        self._admission = Admission(Shape.THRESHER, limits or Limits())
        self._lock = ForkSafeLock()
        self._made: dict[Kind, Backend] = {}

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, message: Message, connection: Any = None) -> None:
        """Publish one message."""
        self.publish_list([message], connection)

    def publish_list(self, messages: Iterable[Message], connection: Any = None) -> None:
        """Publish messages in order. `connection` is the caller's, for the outbox; other backends ignore it.

        Raises `EncodingFailed` or `InvalidMessage` before anything is written or sent, and the backend's own errors.
        """
        ready = [self._ready(message) for message in messages]
        self._backend().publish(ready, connection)

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait for messages in flight, and return whether all of them arrived."""
        with self._lock:
            made = list(self._made.values())
        if self._own is not None and not isinstance(self._own, Kind):
            made.append(self._own)
        # A list, so that every backend is flushed even after one has failed.
        flushed = [each.flush(timeout_seconds) for each in made]
        return all(flushed)

    def close(self) -> None:
        """Flush and close the backends that this publisher created, not one that was passed in. Idempotent."""
        with self._lock:
            made, self._made = self._made, {}
        for backend in made.values():
            backend.close()

    def _ready(self, message: Any) -> Message:
        if not isinstance(message, Message):
            raise InvalidMessage("message", shorten(message), f"a Message is needed, not {type(message).__name__}")
        # A list, because a serializer may append headers.
        given: Any = message.headers
        headers = list(given.items() if isinstance(given, Mapping) else given) if isinstance(given, Iterable) else given
        content = encoded(self._value, message.value, message.topic, MessageField.VALUE, headers)
        key = encoded(self._key, message.key, message.topic, MessageField.KEY, headers)
        # Without the partition key: the backend itself checks whether it can hold one.
        ready = replace(message, key=key, value=content, headers=headers, partition_key=None)
        topic, key, content, names, values, partition, timestamp = self._admission.row(ready)
        return Message(
            topic=topic,
            key=key,
            value=content,
            headers=tuple(zip(names, values, strict=True)),
            partition=partition,
            timestamp=timestamp,
            partition_key=message.partition_key,
        )

    def _backend(self) -> Backend:
        choice = effective(self._own)
        if not isinstance(choice, Kind):
            return choice
        with self._lock:
            if choice not in self._made:
                self._made[choice] = self._new(choice)
            return self._made[choice]

    def _new(self, kind: Kind) -> Backend:
        if kind is Kind.MEMORY:
            return MemoryBackend()
        if kind is Kind.OUTBOX:
            return OutboxBackend(self._outbox or Outbox())
        if self._kafka is None:
            raise InvalidInput(f"the backend {kind} sends to Kafka: give Publisher(kafka={{'bootstrap.servers': …}})")
        return KafkaBackend(self._kafka, waits=kind is Kind.KAFKA)
