"""Makes pending rows (`db.outbox_store`) of changes in the WAL: the same rows that a relay reads from the table.

Columns are found by name: a table may have additional ones, in any order. If a known column is missing, or has another
type, the table is refused: records would be sent without its content. A row with a flaw (headers or a timestamp that
Kafka cannot have) also carries their original values, for the dead table: arrays as the server sent them, since
millions of items in Python would take more memory than a worker may have.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any

from thresher.db.outbox_store import PendingRow
from thresher.db.problem import DatabaseRefused
from thresher.db.shape import MOST_HEADERS, Shape
from thresher.outbox.log_message import Unreadable, decode, split
from thresher.tail.pgoutput import BINARY, INSERT_FRAME, NULL, TEXT, Garbled, Relation

# OIDs of built-in types in pg_type, which never change.
_INTEGERS, _TEXTS, _TEXT_ARRAYS = {20, 21, 23}, {25, 1043}, {1009, 1015}
_BIGINT = 20
_BYTES, _BYTE_ARRAYS = {17}, {1001}
_MOMENTS, _TIMES = {1184}, {1114}

_COLUMNS: dict[Shape, dict[str, set[int]]] = {
    Shape.THRESHER: {
        "id": _INTEGERS, "create_time": _MOMENTS, "kafka_topic": _TEXTS, "kafka_key": _BYTES, "kafka_value": _BYTES,
        "kafka_header_keys": _TEXT_ARRAYS, "kafka_header_values": _BYTE_ARRAYS, "kafka_partition": _INTEGERS,
        "kafka_timestamp": _MOMENTS, "dispatched_time": _MOMENTS,
    },
    Shape.GOHARVEST: {
        "id": _INTEGERS, "create_time": _MOMENTS, "kafka_topic": _TEXTS, "kafka_key": _TEXTS, "kafka_value": _TEXTS,
        "kafka_header_keys": _TEXT_ARRAYS, "kafka_header_values": _TEXT_ARRAYS,
    },
    Shape.DEIMOS: {
        "id": _INTEGERS, "created_at": _TIMES | _MOMENTS, "topic": _TEXTS, "key": _BYTES, "message": _BYTES,
        "partition_key": _TEXTS,
    },
}  # fmt: skip
_LENGTH, _ARRAY, _BOUNDS, _ITEM = Struct(">I"), Struct(">iiI"), Struct(">ii"), Struct(">i")
# An array of one item, up to the item's bytes: dimensions, flags, type, count, lower bound, size.
_SINGLE = Struct(">iiIiii")
# The first columns of our own shape, in the order of our table: id and create time, each with kind and size, and the
# kind and size of the topic. Key, value and headers follow (7 columns in all), then columns that are mostly NULL.
_HEAD, _VARYING = Struct(">BIqBIqBI"), 7
_HEAD_END = INSERT_FRAME.size + _HEAD.size
_COLUMNS_OF_HEAD = (BINARY, 8, BINARY, 8, BINARY)
_EPOCH, _POSTGRES_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# The create times that a row may have: infinity, and times beyond Python's calendar, are replaced by the nearest one.
_FIRST = (datetime(1, 1, 2, tzinfo=UTC) - _POSTGRES_EPOCH) // _MICROSECOND
_LAST = (datetime(9999, 12, 30, tzinfo=UTC) - _POSTGRES_EPOCH) // _MICROSECOND
_SINCE_1970 = (_EPOCH - _POSTGRES_EPOCH) // _MICROSECOND
_ENDLESS = {2**63 - 1: "infinity", -(2**63): "-infinity"}
_CYCLE = 146_097 * 86_400_000_000
# Bounds the caches of topics and of lists of header names, in entries and bytes of an entry: usually an outbox has few.
_REMEMBERED, _REMEMBERED_BYTES = 4096, 2048
_NO_HEADERS: tuple[Any, ...] = ()


class InsertedRows:
    """Reads the inserts into one table, which a Relation message describes. Raises `DatabaseRefused`."""

    def __init__(self, relation: Relation, shape: Shape) -> None:
        wanted = _COLUMNS[shape]
        names = [column.name for column in relation.columns]
        for name, types in wanted.items():
            if name not in names:
                raise DatabaseRefused(
                    f'the WAL has no column {name} of "{relation.schema}"."{relation.name}": it was dropped or renamed,'
                    f" or the publication leaves it out. Add it again, or publish all columns: ALTER PUBLICATION … SET "
                    f'TABLE "{relation.schema}"."{relation.name}". Rows that were inserted meanwhile cannot be read '
                    "from the WAL: 'thresher tail slot drop', 'thresher tail slot create', 'thresher adopt NAME', start"
                    " the tail, which deletes none of them, and insert those that are missing in Kafka again"
                )
            column = relation.columns[names.index(name)]
            if column.type not in types:
                raise DatabaseRefused(
                    f'column {name} of "{relation.schema}"."{relation.name}" has a type that the tail cannot read: '
                    "see 'thresher schema check'"
                )
        self._count, self._unknown = len(names), len(wanted)
        # The last bytes of an ordinary row: NULL in all columns after the headers. None if the columns are not ours.
        in_order = names[:_VARYING] == list(wanted)[:_VARYING] and relation.columns[0].type == _BIGINT
        self._ordinary_end = b"n" * (len(names) - _VARYING) if shape is Shape.THRESHER and in_order else None
        # For each column in the frame, the place of its value. Values of unknown columns share the last, unused place.
        places = {name: place for place, name in enumerate(wanted)}
        self._places = [places.get(name, len(wanted)) for name in names]
        self._empty: list[bytes | None] = [None] * (len(wanted) + 1)
        makers: dict[Shape, Callable[[list[bytes | None]], PendingRow | None]] = {
            Shape.THRESHER: self._thresher_row,
            Shape.GOHARVEST: self._goharvest_row,
            Shape.DEIMOS: self._deimos_row,
        }
        self._make = makers[shape]
        self._texts: dict[bytes, str] = {}
        self._names: dict[bytes, tuple[Any, ...] | None] = {}

    def row(self, frame: bytes, columns: int) -> PendingRow | None:
        """Read a frame with a row of this many columns; None if the row has a dispatched time: it was sent already."""
        end = len(frame)
        if columns != self._count:
            raise Garbled("the server sent a row with more or fewer columns than its table has")
        if self._ordinary_end is not None and end > _HEAD_END:
            ordinary = self._ordinary_row(frame)
            if ordinary is not None:
                return ordinary
        values = self._empty.copy()
        at = INSERT_FRAME.size
        length = _LENGTH.unpack_from
        for place in self._places:
            kind = frame[at]
            if kind == BINARY:
                start = at + 5
                at = start + length(frame, at + 1)[0]
                values[place] = frame[start:at]
            elif kind == NULL:
                at += 1
            elif kind == TEXT and place == self._unknown:
                # The server sends types without a binary form as text, although binary was requested.
                at += 5 + length(frame, at + 1)[0]
            else:
                raise Garbled("the server sent a row with a column that is not in binary")
        if at != end:
            raise Garbled("the server sent a row that is cut short")
        return self._make(values)

    def _ordinary_row(self, frame: bytes) -> PendingRow | None:
        """Read a row of our own shape without partition, timestamp and dispatched time, as most are; None otherwise."""
        kind, size, id_, created_kind, created_size, created, topic_kind, at = _HEAD.unpack_from(
            frame, INSERT_FRAME.size
        )
        if (kind, size, created_kind, created_size, topic_kind) != _COLUMNS_OF_HEAD:
            return None
        if not _FIRST <= created <= _LAST:
            return None
        at += _HEAD_END
        topic = frame[_HEAD_END:at]
        length = _LENGTH.unpack_from
        parts: list[bytes | None] = []
        # Key, value, names and values of headers.
        for _ in range(4):
            kind = frame[at]
            if kind == BINARY:
                start = at + 5
                at = start + length(frame, at + 1)[0]
                parts.append(frame[start:at])
            elif kind == NULL:
                at += 1
                parts.append(None)
            else:
                return None
        if frame[at:] != self._ordinary_end:
            return None
        key, value, names, contents = parts
        header_names = self._header_names(names)
        header_values = _items(contents)
        if header_names is None or header_values is None:
            return None
        moment = _POSTGRES_EPOCH + timedelta(0, 0, created)
        known = self._texts.get(topic) or self._text(topic)
        return (id_, moment, known, key, value, header_names, header_values, None, None, None)

    def _thresher_row(self, values: list[bytes | None]) -> PendingRow | None:
        id_, created, topic, key, value, names, contents, partition, moment, sent, _ = values
        if sent is not None:
            return None
        header_names = self._header_names(names)
        header_values = _items(contents)
        timestamp, flaw, more = None, None, _NO_HEADERS
        if header_names is None or header_values is None:
            header_names, header_values, flaw = _NO_HEADERS, _NO_HEADERS, "headers"
        if moment is not None:
            microseconds = int.from_bytes(moment, "big", signed=True)
            if _SINCE_1970 <= microseconds < _LAST:
                timestamp = _POSTGRES_EPOCH + timedelta(0, 0, microseconds)
            else:
                flaw = flaw or "timestamp"
        if flaw is not None:
            more = (None, (names, contents, None if moment is None else _moment_text(moment)))
        return (
            _integer(id_),
            _created(created),
            self._text(topic),
            key,
            value,
            header_names,
            header_values,
            None if partition is None else int.from_bytes(partition, "big", signed=True),
            timestamp,
            flaw,
            *more,
        )

    def _goharvest_row(self, values: list[bytes | None]) -> PendingRow:
        id_, created, topic, key, value, names, contents, _ = values
        flaw, more = None, _NO_HEADERS
        header_names, header_values = self._header_names(names), _items(contents)
        if header_names is None or header_values is None:
            header_names, header_values, flaw = _NO_HEADERS, _NO_HEADERS, "headers"
            more = (None, (names, contents, None))
        return (
            _integer(id_), _created(created), self._text(topic), key, value, header_names, header_values, None, None,
            flaw, *more,
        )  # fmt: skip

    def _deimos_row(self, values: list[bytes | None]) -> PendingRow:
        id_, created, topic, key, value, partition_key, _ = values
        # An empty key is also set as partition key: otherwise the producer would spread such rows over partitions.
        chooses = (key if key == b"" else None) if partition_key is None else partition_key
        return (
            _integer(id_), _created(created), self._text(topic), key, value, _NO_HEADERS, _NO_HEADERS, None, None, None,
            chooses,
        )  # fmt: skip

    def _text(self, content: bytes | None) -> str:
        if content is None:
            raise DatabaseRefused("a row without a topic is in the WAL: its column must be NOT NULL")
        known = self._texts.get(content)
        if known is None:
            known = content.decode()
            if len(content) <= _REMEMBERED_BYTES:
                if len(self._texts) >= _REMEMBERED:
                    self._texts.clear()
                self._texts[content] = known
        return known

    def _header_names(self, content: bytes | None) -> tuple[Any, ...] | None:
        if content is None:
            return _NO_HEADERS
        try:
            return self._names[content]
        except KeyError:
            pass
        found = _items(content)
        names = None if found is None else tuple(None if name is None else name.decode() for name in found)
        if len(content) <= _REMEMBERED_BYTES:
            if len(self._names) >= _REMEMBERED:
                self._names.clear()
            self._names[content] = names
        return names


def message_rows(position: int, created: datetime, content: bytes) -> list[PendingRow]:
    """Return the rows of a log message. Their ids count up to its position, their create time is the commit time.

    The position is the end of the message's record, which has more bytes than messages: no other message has these ids.
    Content that cannot be read becomes a row with a flaw whose value is the whole content: nothing of it is lost.
    """
    try:
        parts = split(content)
    except Unreadable:
        return [(position, created, "", None, content, _NO_HEADERS, _NO_HEADERS, None, None, "message")]
    return [_message_row(id_, created, part) for id_, part in enumerate(parts, position - len(parts) + 1)]


def _message_row(position: int, created: datetime, content: bytes) -> PendingRow:
    try:
        topic, key, value, names, values, partition, moment = decode(content)
    except Unreadable:
        return (position, created, "", None, content, _NO_HEADERS, _NO_HEADERS, None, None, "message")
    timestamp = None
    if moment is not None:
        if moment >= _LAST - _SINCE_1970:
            return (position, created, "", None, content, _NO_HEADERS, _NO_HEADERS, None, None, "timestamp")
        timestamp = _EPOCH + timedelta(0, 0, moment)
    return (position, created, topic, key, value, names, values, partition, timestamp, None)


def _integer(content: bytes | None) -> int:
    if content is None:
        raise DatabaseRefused("a row without an id is in the WAL: its column must be NOT NULL")
    return int.from_bytes(content, "big", signed=True)


def _created(content: bytes | None) -> datetime:
    if content is None:
        raise DatabaseRefused("a row without a create time is in the WAL: its column must be NOT NULL")
    microseconds = int.from_bytes(content, "big", signed=True)
    if not _FIRST <= microseconds <= _LAST:
        microseconds = _FIRST if microseconds < _FIRST else _LAST
    return _POSTGRES_EPOCH + timedelta(0, 0, microseconds)


def _items(content: bytes | None) -> tuple[bytes | None, ...] | None:
    """Return the items of a binary array; None if it has more than one dimension, or too many items."""
    # An empty array has no dimensions.
    if content is None or len(content) == _ARRAY.size:
        return _NO_HEADERS
    if len(content) >= _SINGLE.size:
        dimensions, _, _, count, _, size = _SINGLE.unpack_from(content)
        if dimensions == count == 1 and size >= 0:
            return (content[_SINGLE.size : _SINGLE.size + size],)
    dimensions, _, _ = _ARRAY.unpack_from(content)
    if dimensions != 1:
        return None
    (count, _) = _BOUNDS.unpack_from(content, _ARRAY.size)
    if count > MOST_HEADERS:
        return None
    items: list[bytes | None] = []
    at = _ARRAY.size + _BOUNDS.size
    for _ in range(count):
        (size,) = _ITEM.unpack_from(content, at)
        at += 4
        if size < 0:
            items.append(None)
        else:
            items.append(content[at : at + size])
            at += size
    return tuple(items)


def _moment_text(content: bytes) -> str:
    """Return a timestamp as text that Postgres can read, also for years beyond Python's calendar."""
    microseconds = int.from_bytes(content, "big", signed=True)
    if microseconds in _ENDLESS:
        return _ENDLESS[microseconds]
    # The calendar repeats itself after 400 years.
    cycles, within = divmod(microseconds, _CYCLE)
    moment = _POSTGRES_EPOCH + timedelta(0, 0, within)
    year = moment.year + 400 * cycles
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{moment:%m-%d %H:%M:%S.%f}+00{era}"
