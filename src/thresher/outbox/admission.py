"""Decides whether a message may enter the outbox, and as which row.

Pure: no connection is used, so a refusal leaves the caller's transaction as it was. A message is admitted if the table
can hold it and the relay can send it. A message that could only become a dead letter is refused here, with the reason.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from thresher.core.errors import InvalidInput, shorten
from thresher.core.topic_name import is_topic
from thresher.outbox.message import Message
from thresher.outbox.shape import MOST_HEADERS, Shape

Row = tuple[Any, ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The overhead of a record on the wire, at most: lengths, offsets, and the header of a batch with one record.
_RECORD_BYTES = 70
_HEADER_BYTES = 10
_LARGEST_PARTITION = 2**31 - 1
# How many topics and header names are remembered. An application has few; the bound is for one that has many.
_REMEMBERED = 4096
# Longer header names are not remembered: together they could take much memory.
_REMEMBERED_BYTES = 256


class InvalidMessage(InvalidInput):
    """A message was refused: the field, its value (shortened), and the rule that it breaks."""

    def __init__(self, field: str, value: str, rule: str) -> None:
        super().__init__(field, value, rule)
        self.field = field
        self.value = value
        self.rule = rule

    def __str__(self) -> str:
        return f"message refused: {self.field} = {self.value}: {self.rule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The sizes that a message may have. The defaults fit a broker and a producer with default settings.

    `message_bytes` counts key, value, headers and Kafka's overhead (70 bytes, and 10 for each header), and in Deimos'
    shape the partition key. The character limits are those of goharvest's columns and apply to that shape only; raise
    them for a wider table.
    `outstanding`: the `Outbox` refuses messages while more rows than this wait in the table. None means no limit.
    """

    message_bytes: int = 1_000_000
    key_characters: int = 100
    value_characters: int = 10_000
    outstanding: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            limit = getattr(self, name)
            if limit is None and name == "outstanding":
                continue
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
                raise InvalidInput(f"limit {name} = {shorten(limit)}: a positive whole number is needed")


class Admission:
    """The checks for one table shape. `row` returns the column values in the order of the shape's statements.

    Topics and header names that passed are remembered, which makes the checks fast: a bulk insert runs all of them
    before it sends its first row.
    """

    def __init__(self, shape: Shape, limits: Limits) -> None:
        self._limits = limits
        self._message_bytes = limits.message_bytes
        self._topics: set[str] = set()
        self._name_bytes: dict[str, int] = {}
        rows: dict[Shape, Callable[[Message], Row]] = {
            Shape.THRESHER: self._thresher_row,
            Shape.GOHARVEST: self._goharvest_row,
            Shape.DEIMOS: self._deimos_row,
        }
        self.row = rows[shape]

    def _thresher_row(self, message: Message) -> Row:  # noqa: C901, PLR0912 - calls would double its cost
        if message.__class__ is not Message:
            _admit_message(message)
        topic, key, value, partition, timestamp = (
            message.topic, message.key, message.value, message.partition, message.timestamp,
        )  # fmt: skip
        if topic.__class__ is not str or topic not in self._topics:
            self._admit_topic(topic)
        size = _RECORD_BYTES
        if key is not None:
            if key.__class__ is not bytes:
                key = _to_bytes("key", key)
            size += len(key)
        if value is not None:
            if value.__class__ is not bytes:
                value = _to_bytes("value", value)
            size += len(value)
        names: list[str] = []
        values: list[bytes | None] = []
        headers = message.headers
        if headers or headers.__class__ is not tuple:
            for pair in headers if headers.__class__ is tuple or headers.__class__ is list else _pairs(headers):
                name, content = pair if pair.__class__ is tuple and len(pair) == 2 else _pair(pair)
                known = self._name_bytes.get(name) if name.__class__ is str else None
                names.append(name)
                size += (self._admit_name(name) if known is None else known) + _HEADER_BYTES
                if content is None:
                    values.append(None)
                else:
                    data = content if content.__class__ is bytes else _to_bytes(_header(name), content)
                    values.append(data)
                    size += len(data)
            if len(names) > MOST_HEADERS:
                _refuse_headers(len(names))
        if size > self._message_bytes:
            self._refuse_size(message, size)
        if partition is not None:
            _admit_partition(partition)
        if timestamp is not None:
            timestamp = _admit_timestamp(timestamp)
        if message.partition_key is not None:
            _refuse_field(message, "partition_key", "our own table has no column for it: give the partition itself")
        # Tuples of plain values: the garbage collector does not track them, and a bulk insert creates many.
        return (topic, key, value, tuple(names), tuple(values), partition, timestamp)

    def _goharvest_row(self, message: Message) -> Row:
        _admit_message(message)
        self._admit_topic(message.topic)
        if message.key is None:
            raise InvalidMessage("key", "None", "goharvest's table cannot hold a NULL key (kafka_key is NOT NULL)")
        for field in ("partition", "timestamp", "partition_key"):
            _refuse_field(message, field, "goharvest's table has no column for it")
        key = _to_text("key", message.key)
        value = None if message.value is None else _to_text("value", message.value)
        _admit_length("key", key, self._limits.key_characters)
        if value is not None:
            _admit_length("value", value, self._limits.value_characters)
        size = _RECORD_BYTES + len(key.encode()) + (len(value.encode()) if value else 0)
        names: list[str] = []
        values: list[str] = []
        for name, header in _pairs(message.headers):
            name_bytes = self._admit_name(name)
            if header is None:
                raise InvalidMessage(_header(name), "None", "goharvest's table holds no NULL header values")
            text = _to_text(_header(name), header)
            names.append(name)
            values.append(text)
            size += name_bytes + _HEADER_BYTES + len(text.encode())
        if len(names) > MOST_HEADERS:
            _refuse_headers(len(names))
        if size > self._limits.message_bytes:
            self._refuse_size(message, size)
        return (message.topic, key, value, tuple(names), tuple(values))

    def _deimos_row(self, message: Message) -> Row:
        _admit_message(message)
        self._admit_topic(message.topic)
        if _pairs(message.headers):
            raise InvalidMessage("headers", shorten(message.headers), "Deimos' table has no column for them")
        _refuse_field(message, "partition", "Deimos' table has no column for it: give a partition_key")
        _refuse_field(message, "timestamp", "Deimos' table has no column for it")
        key = None if message.key is None else _to_bytes("key", message.key)
        value = None if message.value is None else _to_bytes("value", message.value)
        given = message.partition_key
        partition_key = None if given is None else _to_text("partition_key", given)
        # The partition key is not part of the record, but of the row that the relay reads.
        size = _RECORD_BYTES + len(key or b"") + len(value or b"") + len((partition_key or "").encode())
        if size > self._message_bytes:
            self._refuse_size(message, size)
        return (message.topic, key, value, (), (), partition_key)

    def _admit_topic(self, topic: object) -> None:
        if not isinstance(topic, str):
            raise InvalidMessage("topic", shorten(topic), f"a string is needed, not {_type(topic)}")
        if not is_topic(topic):
            rule = (
                "Kafka allows 1 to 249 of the characters a-z A-Z 0-9 . _ - but neither '.' nor '..' alone, nor the "
                "names of its internal topics"
            )
            raise InvalidMessage("topic", shorten(topic), rule)
        if len(self._topics) >= _REMEMBERED:
            self._topics.clear()
        self._topics.add(topic)

    def _admit_name(self, name: object) -> int:
        """Return the name's length in bytes. (Another thread may clear the remembered lengths at any time.)"""
        if not isinstance(name, str):
            raise InvalidMessage("header name", shorten(name), f"a string is needed, not {_type(name)}")
        if len(self._name_bytes) >= _REMEMBERED:
            self._name_bytes.clear()
        size = len(_to_text("header name", name).encode())
        if size <= _REMEMBERED_BYTES:
            self._name_bytes[name] = size
        return size

    def _refuse_size(self, message: Message, size: int) -> None:
        parts = {
            "key": message.key or b"",
            "value": message.value or b"",
            "partition_key": message.partition_key or b"",
        }
        parts |= {_header(name): content or b"" for name, content in _pairs(message.headers)}
        largest = max(parts, key=lambda part: len(parts[part]))
        rule = f"with Kafka's overhead the message has {size} bytes, {self._limits.message_bytes} are allowed"
        raise InvalidMessage(largest, shorten(parts[largest]), rule)


def _refuse_field(message: Message, field: str, rule: str) -> None:
    """Refuse a message with a value in a field that the table cannot hold."""
    if (value := getattr(message, field)) is not None:
        raise InvalidMessage(field, shorten(value), rule)


def _refuse_headers(count: int) -> None:
    raise InvalidMessage("headers", f"{count:,} headers", f"at most {MOST_HEADERS:,} are allowed")


def _admit_message(message: object) -> None:
    if not isinstance(message, Message):
        raise InvalidMessage("message", shorten(message), f"a Message is needed, not {_type(message)}")


def _pairs(headers: object) -> list[tuple[Any, Any]]:
    """Return the headers as pairs, in order, with repeats. The content of the pairs is not checked here."""
    if isinstance(headers, Mapping):
        return list(headers.items())
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise InvalidMessage("headers", shorten(headers), "a sequence of pairs or a mapping is needed")
    return [_pair(pair) for pair in headers]


def _pair(pair: object) -> tuple[Any, Any]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidMessage("headers", shorten(pair), "each header is a pair of name and value")
    return pair[0], pair[1]


def _to_bytes(field: str, content: object) -> bytes:
    if isinstance(content, bytes):
        return content
    if not isinstance(content, str):
        raise InvalidMessage(field, shorten(content), f"bytes, str or None is needed, not {_type(content)}")
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(field, shorten(content), "a lone surrogate cannot be encoded in UTF-8") from None


def _to_text(field: str, content: object) -> str:
    """Return content as text that a text column can hold."""
    if isinstance(content, str):
        _to_bytes(field, content)
        text = content
    elif isinstance(content, bytes):
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise InvalidMessage(field, shorten(content), "not UTF-8, and the column holds text only") from None
    else:
        raise InvalidMessage(field, shorten(content), f"str or bytes is needed, not {_type(content)}")
    if "\0" in text:
        raise InvalidMessage(field, shorten(content), "a NUL character cannot be stored in a text column")
    return text


def _admit_length(field: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidMessage(field, shorten(text), f"{len(text)} characters, goharvest's column holds {limit}")


def _admit_partition(partition: object) -> None:
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidMessage("partition", shorten(partition), f"a whole number is needed, not {_type(partition)}")
    if not 0 <= partition <= _LARGEST_PARTITION:
        raise InvalidMessage("partition", shorten(partition), f"0 to {_LARGEST_PARTITION} is allowed")


def _admit_timestamp(timestamp: object) -> datetime:
    """Return the same time in UTC, which every session writes and reads in the same way."""
    if not isinstance(timestamp, datetime):
        raise InvalidMessage("timestamp", shorten(timestamp), f"a datetime is needed, not {_type(timestamp)}")
    if timestamp.tzinfo is None or timestamp.utcoffset() is None:
        raise InvalidMessage("timestamp", shorten(timestamp), "it has no time zone: pass an aware datetime")
    if timestamp < _EPOCH:
        raise InvalidMessage("timestamp", shorten(timestamp), "Kafka has no time before 1970")
    try:
        return timestamp.astimezone(UTC)
    except OverflowError:
        raise InvalidMessage("timestamp", shorten(timestamp), "it is after the year 9999 in UTC") from None


def _header(name: str) -> str:
    return f"header {shorten(name)}"


def _type(value: object) -> str:
    return type(value).__name__
