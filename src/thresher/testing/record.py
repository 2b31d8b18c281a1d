"""A record as a reader got it, and in what it differs from the row that its writer noted.

Values and headers are compared by digests: a history stays small, and one changed byte is still seen. The header that
carries a record's identity is no part of its content.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from thresher.core.errors import shorten
from thresher.outbox import Message
from thresher.testing.history import IDENTITY_HEADER, Content

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Against accidents, not against an adversary.
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A record as a reader got it; `identity` is empty where the header is missing. `value` and `headers` are digests.

    `timestamp` is in milliseconds since 1970; `stamped_by_broker`: the topic keeps the broker's time, not the record's.
    """

    identity: str
    key: bytes | str | None
    topic: str
    partition: int
    offset: int
    value: str | None = None
    headers: str = ""
    timestamp: int | None = None
    stamped_by_broker: bool = False


def content_of(message: Message) -> Content:
    """Return what a history notes of a message."""
    headers, moment = message.headers, message.timestamp
    return Content(
        topic=message.topic,
        value=value_digest(message.value),
        headers=headers_digest(headers.items() if isinstance(headers, Mapping) else headers),
        partition=message.partition,
        timestamp=None if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1),
    )


def value_digest(value: bytes | str | None) -> str | None:
    """Return the digest of a value; None for a tombstone."""
    return None if value is None else blake2b(_bytes(value), digest_size=_DIGEST_BYTES).hexdigest()


def headers_digest(headers: Iterable[tuple[str, bytes | str | None]]) -> str:
    """Return the digest of all headers but the identity, in their order; "" if there are none.

    A header without a value, one with an empty value, and a name that comes twice are told apart.
    """
    parts = [
        b"%d:%b%d:%b" % (len(name.encode()), name.encode(), -1 if value is None else len(_bytes(value)), _bytes(value))
        for name, value in headers
        if name != IDENTITY_HEADER
    ]
    return blake2b(b"".join(parts), digest_size=_DIGEST_BYTES).hexdigest() if parts else ""


def difference(written: Content | None, key: bytes | None, read: Read) -> str | None:
    """Return in what a record differs from its row; None if in nothing.

    Without a content, of a history that has none, only keys are compared. A time that the broker gave is not compared.
    """
    found = [] if key_bytes(read.key) == key else [f"its key was {shown(key)}"]
    if written is not None:
        found += [f"its {name} was {was}, and is {now}" for name, was, now in _fields(written, read) if was != now]
    return "; ".join(found) or None


def key_bytes(key: bytes | str | None) -> bytes | None:
    """Return a key as Kafka has it."""
    # Keys that only the escape of a lone surrogate keeps apart are still keys.
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key


def shown(key: bytes | None) -> str:
    """Return a key for a line."""
    if key is None:
        return "none"
    try:
        return shorten(key.decode())
    except UnicodeDecodeError:
        return shorten(key)


def _fields(written: Content, read: Read) -> Iterable[tuple[str, object, object]]:
    yield "topic", written.topic, read.topic
    yield "value", _digest(written.value), _digest(read.value)
    yield "headers", _digest(written.headers), _digest(read.headers)
    if written.partition is not None:
        yield "partition", written.partition, read.partition
    if written.timestamp is not None and not read.stamped_by_broker:
        yield "timestamp", written.timestamp, read.timestamp


def _digest(digest: str | None) -> str:
    return "none" if not digest else f"digest {digest}"


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
