"""Markers, as kafka-mq-go writes them: the notes from which the tracker knows the messages that are in progress.

1. `START` comes first and holds the whole message. Unless another marker follows, the message is redelivered when
   `redeliver_after_ms` have passed since this one.
2. `KEEPALIVE` puts the redelivery off, to `redeliver_after_ms` after itself. With 0 the message is given back at once.
3. `END`: the message was processed. Nothing follows it.

The fields that kafka-mq-go does not know are from 16 up; it skips them, and redelivers what was rejected.
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
    """A record of the markers' topic is no marker."""


# The partition of ids that no record has: messages that were sent with a delay, and a tracker's own marks.
SYNTHETIC = -1


class MessageId(NamedTuple):
    """A message's place in the message topic. A redelivered message has a new one.

    A message that was sent with a delay has no place yet: its partition is -1, written `d`.
    """

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{'d' if self.partition == SYNTHETIC else self.partition}-{self.offset}"


class MarkerType(IntEnum):
    """What a marker says of its message."""

    START = 0
    END = 1
    KEEPALIVE = 2


_TYPES = frozenset(map(int, MarkerType))
# The fields of a Start that are absent where they are None.
_OF_START = ("max_deliveries", "ttl_ms", "first_started_ms", "read_to", "timeout_ms")


# Not frozen, nor is a record: one is made for each message and each ack, and freezing it takes longer than the rest.
@dataclass(slots=True, kw_only=True)
class StartContent:
    """What a Start holds besides: the message, its past, its own limits; and, written anew, how its writer stood."""

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
    """One marker. What its type does not carry has the default."""

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
    """Return a marker's bytes. Fields that have their default are absent."""
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
        raise MarkerMalformed(f"the marker of message {marker.message_id} cannot be written: {error}") from error


def _add_start(message: Any, marker: Marker) -> None:
    message.key, message.value = marker.key, marker.value
    for name, value in marker.headers:
        message.headers.add(name=name.encode(errors="surrogateescape"), value=value)
    message.delivery_count = marker.delivery_count
    for field in _OF_START:
        if (number := getattr(marker, field)) is not None:
            setattr(message, field, number)


def parse(content: bytes) -> Any:
    """Return the protobuf message that bytes are, with the fields of `marker.proto`: at a fifth of what `decode` costs.

    Raises `MarkerMalformed`.
    """
    try:
        message = _Message.FromString(content)
    except DecodeError as error:
        raise MarkerMalformed(f"{len(content)} bytes are no marker: {error}") from error
    if message.version:
        raise MarkerMalformed(f"a marker has version {message.version}, and we know none but 0")
    if message.type not in _TYPES:
        raise MarkerMalformed(f"a marker has a type that we do not know: {message.type}")
    if not message.HasField("message_id"):
        raise MarkerMalformed("a marker names no message")
    return message


def decode(content: bytes) -> Marker:
    """Return the marker that bytes are. Raises `MarkerMalformed`."""
    message = parse(content)
    return Marker(
        type=MarkerType(message.type),
        message_id=MessageId(message.message_id.partition, message.message_id.offset),
        redeliver_after_ms=message.redeliver_after_ms,
        key=message.key,
        value=message.value,
        headers=_headers(message.headers),
        # kafka-mq-go does not count.
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
