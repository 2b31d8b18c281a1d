"""Markers, in kafka-mq-go's format: the records from which the tracker rebuilds which messages are in progress.

1. `START` is the first marker and holds the whole message. Unless another marker follows, the message is redelivered
   `redeliver_after_ms` after this one.
2. `KEEPALIVE` postpones the redelivery to `redeliver_after_ms` after itself. With 0 the message is given back at once.
3. `END`: the message was processed. No marker follows it.

Fields from 16 up are our own. kafka-mq-go ignores them, and so redelivers rejected messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, EncodeError

from thresher.core.errors import ThresherError

Headers = tuple[tuple[str, bytes | None], ...]


class MarkerMalformed(ThresherError, ValueError):  # noqa: N818
    """A record of the marker topic is not a marker."""


# The partition in ids that belong to no record: messages sent with a delay, and the tracker's own marks.
SYNTHETIC = -1


class MessageId(NamedTuple):
    """The partition and offset of a message in the message topic. A redelivered message has a new id.

    A message sent with a delay is not in the message topic yet: the partition in its id is -1, printed as `d`.
    """

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{'d' if self.partition == SYNTHETIC else self.partition}-{self.offset}"


class MarkerType(IntEnum):
    """The types of markers."""

    START = 0
    END = 1
    KEEPALIVE = 2


_TYPES = frozenset(map(int, MarkerType))
# The fields that a Start omits if they are None.
_OF_START = ("max_deliveries", "ttl_ms", "first_started_ms", "read_to", "timeout_ms")


# Not frozen, like `Record`: one is made for each message and each ack, and freezing would take most of the time.
@dataclass(slots=True, kw_only=True)
class StartContent:
    """The additional content of a Start: the message, its history, its limits; and the rewriting tracker's state."""

    key: bytes = b""
    value: bytes = b""
    headers: Headers = ()
    delivery_count: int = 1
    enqueued_at_ms: int | None = None
    max_deliveries: int | None = None
    ttl_ms: int | None = None
    first_started_ms: int | None = None
    read_to: int | None = None
    timeout_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class Marker(StartContent):
    """One marker. Fields that its type does not use have their defaults."""

    type: MarkerType
    message_id: MessageId
    redeliver_after_ms: int = 0
    origin_id: MessageId | None = None
    reject_reason: str | None = None
    undelivered: bool = False
    released: bool = False


def _message_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    compiled = resources.files(__package__).joinpath("marker.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("thresher.queue.Marker"))


_Message = _message_class()


def encode(marker: Marker) -> bytes:
    """Return a marker's bytes. Fields with their default value are omitted."""
    message = _Message(type=marker.type)
    message.message_id.partition, message.message_id.offset = marker.message_id
    if marker.redeliver_after_ms:
        message.redeliver_after_ms = marker.redeliver_after_ms
    if marker.type is MarkerType.START:
        _add_start(message, marker)
    if marker.enqueued_at_ms is not None:
        message.enqueued_at_ms = marker.enqueued_at_ms
    if marker.origin_id is not None:
        message.origin_id.partition, message.origin_id.offset = marker.origin_id
    if marker.reject_reason is not None:
        message.reject_reason = marker.reject_reason.encode(errors="replace").decode()
    if marker.undelivered:
        message.undelivered = True
    if marker.released:
        message.released = True
    try:
        return bytes(message.SerializeToString())
    except EncodeError as error:
        raise MarkerMalformed(f"the marker of message {marker.message_id} cannot be encoded: {error}") from error


def _add_start(message: Any, marker: Marker) -> None:
    message.key, message.value = marker.key, marker.value
    for name, value in marker.headers:
        message.headers.add(name=name.encode(errors="surrogateescape"), value=value)
    message.delivery_count = marker.delivery_count
    for field in _OF_START:
        if (number := getattr(marker, field)) is not None:
            setattr(message, field, number)


def parse(content: bytes) -> Any:
    """Parse a marker into its protobuf message: five times as fast as `decode`. Raises `MarkerMalformed`."""
    try:
        message = _Message.FromString(content)
    except DecodeError as error:
        raise MarkerMalformed(f"{len(content)} bytes are not a marker: {error}") from error
    if message.version:
        raise MarkerMalformed(f"the marker has version {message.version}, and only version 0 is supported")
    if message.type not in _TYPES:
        raise MarkerMalformed(f"the marker has an unknown type: {message.type}")
    if not message.HasField("message_id"):
        raise MarkerMalformed("the marker has no message id")
    return message


def decode(content: bytes) -> Marker:
    """Decode a marker. Raises `MarkerMalformed`."""
    message = parse(content)
    return Marker(
        type=MarkerType(message.type),
        message_id=MessageId(message.message_id.partition, message.message_id.offset),
        redeliver_after_ms=message.redeliver_after_ms,
        key=message.key,
        value=message.value,
        headers=_headers(message.headers),
        # kafka-mq-go does not count deliveries.
        delivery_count=message.delivery_count or 1,
        origin_id=(
            MessageId(message.origin_id.partition, message.origin_id.offset) if message.HasField("origin_id") else None
        ),
        enqueued_at_ms=message.enqueued_at_ms or None,
        reject_reason=message.reject_reason if message.HasField("reject_reason") else None,
        undelivered=message.undelivered,
        max_deliveries=message.max_deliveries or None,
        ttl_ms=message.ttl_ms or None,
        first_started_ms=message.first_started_ms or None,
        read_to=message.read_to if message.HasField("read_to") else None,
        timeout_ms=message.timeout_ms or None,
        released=message.released,
    )


def _headers(found: Sequence[Any]) -> Headers:
    return tuple(
        (header.name.decode(errors="surrogateescape"), header.value if header.HasField("value") else None)
        for header in found
    )
