"""The encoding of messages in Postgres' WAL: one byte for the version, then a protocol buffer.

    message LogMessage {
      string topic = 1;
      optional bytes key = 2;
      optional bytes value = 3;                 // absent: a tombstone
      repeated Header headers = 4;              // in order; a name may repeat
      optional uint32 partition = 5;
      optional uint64 timestamp = 6;            // microseconds since 1970
    }
    message Header { string name = 1; optional bytes value = 2; }

It is encoded and decoded here by hand: an application needs no protobuf library, and decoding has to be fast. Any
protobuf encoder produces the same content. Unknown fields are skipped; another version is refused.

Version 2 is several messages in one: each a length as protocol buffers write it, then that many bytes of message.

Any writer of an outbox may send any bytes. Decoding takes time and memory in proportion to the content, up to a bound:
content with more than `MOST_HEADERS` headers, or with far more fields than those, is refused as soon as that is known.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from thresher.outbox.admission import Row
from thresher.outbox.shape import MOST_HEADERS

VERSION, BATCH = 1, 2

# Tags: the field's number, and the wire type: a number (0), or a length and that many bytes (2).
_TOPIC, _KEY, _VALUE, _HEADER, _PARTITION, _TIMESTAMP = 0x0A, 0x12, 0x1A, 0x22, 0x28, 0x30
_NAME, _CONTENT = 0x0A, 0x12
_KNOWN = frozenset({_TOPIC, _KEY, _VALUE, _HEADER, _PARTITION, _TIMESTAMP})
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_FIRST = bytes([VERSION, _TOPIC])
_SINGLE_VERSION, _BATCH_VERSION = bytes([VERSION]), bytes([BATCH])
# The bounds of a batch: what is written, and what is read. A larger message is alone in its content.
_BATCH_MESSAGES, _BATCH_BYTES = 1_000, 64 * 2**10
MOST_BATCH_MESSAGES, MOST_BATCH_BYTES = 10_000, 2**20
# Most lengths fit one byte.
_LENGTHS = [bytes([size]) for size in range(128)]
_NUMBER_BYTES = 10
_NO_HEADERS: tuple[tuple[str, ...], tuple[bytes | None, ...]] = ((), ())
_LARGEST_PARTITION = 2**31 - 1
# How many fields a message may have beside its headers, and a header: more than enough for later versions.
_MOST_FIELDS, _MOST_HEADER_FIELDS = 1_000, 100


class Unreadable(ValueError):  # noqa: N818
    """The content is not a message in this encoding. The text says why."""


class LoggedMessage(NamedTuple):
    """A decoded message. The timestamp is in microseconds since 1970."""

    topic: str
    key: bytes | None
    value: bytes | None
    header_names: tuple[str, ...]
    header_values: tuple[bytes | None, ...]
    partition: int | None
    timestamp: int | None


def encode(row: Row) -> bytes:
    """Return the encoded content of an admitted message in Thresher's own shape."""
    topic, key, value, names, values, partition, timestamp = row
    name = topic.encode()
    parts = [_FIRST, _length(len(name)), name]
    if key is not None:
        parts += (b"\x12", _length(len(key)), key)
    if value is not None:
        parts += (b"\x1a", _length(len(value)), value)
    for header, content in zip(names, values, strict=True):
        encoded = header.encode()
        pair = b"\x0a" + _length(len(encoded)) + encoded
        if content is not None:
            pair += b"\x12" + _length(len(content)) + content
        parts += (b"\x22", _length(len(pair)), pair)
    if partition is not None:
        parts += (b"\x28", _length(partition))
    if timestamp is not None:
        parts += (b"\x30", _length((timestamp - _EPOCH) // _MICROSECOND))
    return b"".join(parts)


def encode_all(rows: Iterable[Row]) -> list[bytes]:
    """Return the encoded contents of admitted messages, in order: in batches, because each content has a cost."""
    contents: list[bytes] = []
    parts: list[bytes] = []
    size = 0

    def close() -> None:
        nonlocal parts, size
        if len(parts) > 1:
            contents.append(_BATCH_VERSION + b"".join(_length(len(part) - 1) + part[1:] for part in parts))
        else:
            contents.extend(parts)
        parts, size = [], 0

    for row in rows:
        part = encode(row)
        if size + len(part) > _BATCH_BYTES or len(parts) == _BATCH_MESSAGES:
            close()
        parts.append(part)
        size += len(part)
    close()
    return contents


def split(content: bytes) -> list[bytes]:
    """Return the messages in content, each with its version. Raises `Unreadable` for a malformed batch."""
    if not content or content[0] != BATCH:
        return [content]
    end = len(content)
    if end > MOST_BATCH_BYTES:
        raise Unreadable(f"it is a batch of more than {MOST_BATCH_BYTES:,} bytes")
    parts: list[bytes] = []
    at = 1
    try:
        while at < end:
            if len(parts) == MOST_BATCH_MESSAGES:
                raise Unreadable(f"it is a batch of more than {MOST_BATCH_MESSAGES:,} messages")
            size, at = _number(content, at)
            parts.append(_SINGLE_VERSION + content[at : at + size])
            at += size
        _require(at == end and bool(parts))
    except IndexError:
        raise Unreadable("it is cut short") from None
    return parts


def decode(content: bytes) -> LoggedMessage:
    """Decode a message. Raises `Unreadable`. Whether topic and numbers are valid is checked later, as for any row."""
    if not content:
        raise Unreadable("it is empty")
    if content[0] != VERSION:
        raise Unreadable(f"its version is {content[0]}, and {VERSION} is known")
    try:
        return _decode(content)
    except IndexError:
        raise Unreadable("it is cut short") from None
    except UnicodeDecodeError:
        raise Unreadable("its topic or the name of a header is not UTF-8") from None


def _decode(content: bytes) -> LoggedMessage:  # noqa: C901, PLR0912 - calls would double its cost
    topic = key = value = partition = timestamp = None
    names: list[str] = []
    values: list[bytes | None] = []
    at, end = 1, len(content)
    others = 0
    while at < end:
        tag = content[at]
        if tag != _HEADER:
            others += 1
            if others > _MOST_FIELDS:
                raise Unreadable(f"it has more than {_MOST_FIELDS:,} fields")
        if tag not in _KNOWN:
            at = _skipped(content, at)
            continue
        size = content[at + 1]
        at += 2
        if size & 0x80:
            size, at = _number(content, at - 1)
        if tag == _PARTITION:
            partition = size
        elif tag == _TIMESTAMP:
            timestamp = size
        else:
            part = content[at : at + size]
            at += size
            if tag == _VALUE:
                value = part
            elif tag == _KEY:
                key = part
            elif tag == _TOPIC:
                topic = part
            else:
                _require(at <= end)
                if len(names) == MOST_HEADERS:
                    raise Unreadable(f"it has more than {MOST_HEADERS:,} headers")
                name, header = _header(part)
                names.append(name)
                values.append(header)
    _require(at == end)
    if topic is None:
        raise Unreadable("it has no topic")
    if partition is not None and partition > _LARGEST_PARTITION:
        raise Unreadable(f"its partition is {partition}, and {_LARGEST_PARTITION} is the last that Kafka can have")
    # The same as `LoggedMessage(…)`, without the cost of the call.
    headers = (tuple(names), tuple(values)) if names else _NO_HEADERS
    return tuple.__new__(LoggedMessage, (topic.decode(), key, value, *headers, partition, timestamp))


def _header(part: bytes) -> tuple[str, bytes | None]:
    end = len(part)
    # The usual form, handled fast: the name, then the value, each with a length of one byte.
    middle = part[1] + 2 if end > 2 and part[0] == _NAME and part[1] < 0x80 else end
    if middle + 2 <= end and part[middle] == _CONTENT and part[middle + 1] == end - middle - 2 < 0x80:
        return part[2:middle].decode(), part[middle + 2 :]
    name, value = "", None
    at = fields = 0
    while at < end:
        fields += 1
        if fields > _MOST_HEADER_FIELDS:
            raise Unreadable(f"a header has more than {_MOST_HEADER_FIELDS} fields")
        tag = part[at]
        if tag not in (_NAME, _CONTENT):
            at = _skipped(part, at)
            continue
        size, at = _number(part, at + 1)
        found = part[at : at + size]
        at += size
        if tag == _NAME:
            name = found.decode()
        else:
            value = found
    _require(at == end)
    return name, value


def _skipped(content: bytes, at: int) -> int:
    """Return the end of an unknown field that begins here."""
    tag, at = _number(content, at)
    wire = tag & 7
    if tag >> 3 == 0 or wire not in (0, 1, 2, 5):
        raise Unreadable("it is no protocol buffer of this kind")
    if wire == 0:
        return _number(content, at)[1]
    if wire == 2:
        size, at = _number(content, at)
        return at + size
    return at + (8 if wire == 1 else 4)


def _number(content: bytes, at: int) -> tuple[int, int]:
    """Return the varint that begins here (seven bits per byte, lowest first), and its end."""
    number = shift = 0
    for byte in content[at : at + _NUMBER_BYTES]:
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
        shift += 7
    raise IndexError


def _length(number: int) -> bytes:
    if number < 128:
        return _LENGTHS[number]
    parts = bytearray()
    while number > 127:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _require(whole: bool) -> None:
    if not whole:
        raise IndexError
