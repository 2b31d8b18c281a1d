"""A record as a reader got it, and its differences from the row in the history.

Values and headers are compared by digests: a history stays small, and a single changed byte is noticed. The header with
a record's identity is not part of its content.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from thresher.core.errors import shorten
from thresher.outbox import Message
from thresher.testing.history import IDENTITY_HEADER, Content

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Enough against accidental changes; not meant against an attacker.
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A record as a reader got it. `identity` is empty without its header. `value` and `headers` are digests.

    `timestamp` is in milliseconds since 1970. `stamped_by_broker`: it is the log append time, not the producer's.
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
    """Return the content of a message for the history."""
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

    The digest distinguishes a header without a value, one with an empty value, and a repeated name.
    """
    parts = [
        b"%d:%b%d:%b" % (len(name.encode()), name.encode(), -1 if value is None else len(_bytes(value)), _bytes(value))
        for name, value in headers
        if name != IDENTITY_HEADER
    ]
    return blake2b(b"".join(parts), digest_size=_DIGEST_BYTES).hexdigest() if parts else ""


def difference(written: Content | None, key: bytes | None, read: Read) -> str | None:
    """Return the differences of a record from its row; None without any.

    If the history has no contents, only keys are compared. A log append time is not compared.
    """
    found = [] if key_bytes(read.key) == key else [f"its key was {shown(key)}"]
    if written is not None:
        found += [f"its {name} was {was}, and is {now}" for name, was, now in _fields(written, read) if was != now]
    return "; ".join(found) or None


def key_bytes(key: bytes | str | None) -> bytes | None:
    """Return a key as bytes."""
    # Also keys with lone surrogates are encoded, so that different keys stay different.
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key


def shown(key: bytes | None) -> str:
    """Return a key as text for a message."""
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
