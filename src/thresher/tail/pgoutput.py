"""Decodes the frames of a replication connection, and the messages of the output plugin `pgoutput` in them.

Protocol version 1, without streaming: a transaction comes as a whole after its commit, as Begin, changes, Commit.
Columns come in binary. Pure: bytes in, values out. Of updates, deletes, types and origins only the kind is decoded.
A message that is cut short or unknown raises `Garbled`: the rest of the stream cannot be trusted.
"""

from dataclasses import dataclass
from struct import Struct, error
from typing import NamedTuple

from thresher.db.problem import DatabaseLost

# The kinds of frames. A data frame begins with its kind, its position, the end of the server's WAL, the server's time.
DATA, KEEP_ALIVE = ord("w"), ord("k")
DATA_HEADER = Struct(">BQQq")
# A data frame with a row in it, up to the columns: frame header, then kind, OID of the table, and number of columns.
INSERT_FRAME = Struct(">BQQqBIBH")
_KEEP_ALIVE = Struct(">BQqB")
_STATUS = Struct(">BQQQqB")
# Messages.
BEGIN, COMMIT, RELATION, INSERT, MESSAGE = map(ord, "BCRIM")
# Update, delete, truncate, type, origin.
IGNORED = frozenset(b"UDTYO")

_BEGIN = Struct(">BQqI")
_COMMIT = Struct(">BBQQq")
_RELATION_ID = Struct(">BI")
_COLUMN_TYPE = Struct(">Ii")
_MESSAGE = Struct(">BBQ")
_INSERT = Struct(">BIBH")
_SHORT, _LONG = Struct(">H"), Struct(">I")
# A column's kind: NULL, in binary, as text, and unchanged but not sent (of an update only).
NULL, BINARY, TEXT = map(ord, "nbt")
# Postgres counts microseconds from 2000.
EPOCH_MICROSECONDS = 946_684_800_000_000


class Garbled(DatabaseLost):
    """The server sent data that violates the protocol. It is discarded."""


class KeepAlive(NamedTuple):
    """The server's position in its WAL, and whether it asks for a status report."""

    position: int
    reply: bool


class Begin(NamedTuple):
    """A committed transaction begins. `commit` is the LSN of its commit record. Times: microseconds since 1970."""

    commit: int
    commit_time: int
    xid: int


class Commit(NamedTuple):
    """The transaction is complete. `end` is the LSN at the end of its commit record."""

    commit: int
    end: int
    commit_time: int


class Column(NamedTuple):
    """A column that is sent: its name and the OID of its type."""

    name: str
    type: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's definition, valid for the changes that follow."""

    id: int
    schema: str
    name: str
    columns: tuple[Column, ...]


class Insert(NamedTuple):
    """An inserted row: kind and bytes of each column."""

    relation: int
    values: tuple[tuple[int, bytes | None], ...]


class LogMessage(NamedTuple):
    """A message that `pg_logical_emit_message` wrote."""

    transactional: bool
    position: int
    prefix: str
    content: bytes


class Ignored(NamedTuple):
    """A message of a kind that the tail does not need."""

    kind: str


Change = Begin | Commit | Relation | Insert | LogMessage | Ignored


def status_report(received: int, confirmed: int, microseconds: int) -> bytes:
    """Return the frame of a status report: how far data was received, and the position to confirm.

    A confirmed position of 0 confirms nothing. The time is in microseconds since 1970.
    """
    return _STATUS.pack(ord("r"), received, confirmed, confirmed, microseconds - EPOCH_MICROSECONDS, 0)


def keep_alive(frame: bytes) -> KeepAlive:
    """Read a keep-alive."""
    try:
        _, position, _, reply = _KEEP_ALIVE.unpack(frame)
    except error:
        raise Garbled(f"the server sent a keep-alive of {len(frame)} bytes, which cannot be read") from None
    return KeepAlive(position, reply != 0)


def decode(message: bytes) -> Change:
    """Read one message of the plugin. Raises `Garbled`."""
    try:
        return _decode(message)
    except (error, IndexError, UnicodeDecodeError, ValueError):
        kind = chr(message[0]) if message else "nothing"
        raise Garbled(f"a message of kind {kind!r} and {len(message)} bytes from the server cannot be read") from None


def _decode(message: bytes) -> Change:
    kind = message[0]
    if kind == INSERT:
        return _insert(message)
    if kind == MESSAGE:
        return _log_message(message)
    if kind == BEGIN:
        _, commit, time, xid = _BEGIN.unpack(message)
        return Begin(commit, time + EPOCH_MICROSECONDS, xid)
    if kind == COMMIT:
        _, _, commit, end, time = _COMMIT.unpack(message)
        return Commit(commit, end, time + EPOCH_MICROSECONDS)
    if kind == RELATION:
        return _relation(message)
    if kind in IGNORED:
        return Ignored(chr(kind))
    raise ValueError(kind)


def _insert(message: bytes) -> Insert:
    _, relation, new, count = _INSERT.unpack_from(message)
    if new != ord("N"):
        raise ValueError(new)
    values: list[tuple[int, bytes | None]] = []
    at = _INSERT.size
    for _ in range(count):
        kind = message[at]
        at += 1
        if kind in (BINARY, TEXT):
            (size,) = _LONG.unpack_from(message, at)
            at += 4 + size
            if at > len(message):
                raise IndexError
            values.append((kind, message[at - size : at]))
        elif kind == NULL:
            values.append((kind, None))
        else:
            raise ValueError(kind)
    _require_end(message, at)
    return Insert(relation, tuple(values))


def _log_message(message: bytes) -> LogMessage:
    _, flags, position = _MESSAGE.unpack_from(message)
    prefix, at = _text(message, _MESSAGE.size)
    (size,) = _LONG.unpack_from(message, at)
    _require_end(message, at + 4 + size)
    return LogMessage(flags & 1 == 1, position, prefix, message[at + 4 :])


def _relation(message: bytes) -> Relation:
    _, id_ = _RELATION_ID.unpack_from(message)
    schema, at = _text(message, _RELATION_ID.size)
    name, at = _text(message, at)
    (count,) = _SHORT.unpack_from(message, at + 1)  # after the replica identity
    at += 3
    columns = []
    for _ in range(count):
        column, at = _text(message, at + 1)  # after its flags
        type_, _ = _COLUMN_TYPE.unpack_from(message, at)
        at += _COLUMN_TYPE.size
        columns.append(Column(column, type_))
    _require_end(message, at)
    # For tables in pg_catalog, the server sends an empty schema.
    return Relation(id_, schema or "pg_catalog", name, tuple(columns))


def _text(message: bytes, at: int) -> tuple[str, int]:
    """Return a zero-terminated text, and the offset behind it."""
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def _require_end(message: bytes, at: int) -> None:
    if at != len(message):
        raise ValueError(at)
