"""Makes chunks of the frames that the server sends: the rows of our outbox, their positions, and how far it has read.

Pure: frames in, chunks out. The server sends committed transactions only, one after another, each as a whole.
"""

from datetime import UTC, datetime, timedelta
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from thresher.db.log_names import log_prefix
from thresher.db.outbox_store import PendingRow
from thresher.db.problem import DatabaseRefused
from thresher.tail.chunk import Chunk
from thresher.tail.log_rows import InsertedRows, message_rows
from thresher.tail.log_seal import LogKeys, Refusal, Seals
from thresher.tail.log_source import LogSource, Source
from thresher.tail.pgoutput import (
    DATA,
    DATA_HEADER,
    INSERT,
    INSERT_FRAME,
    KEEP_ALIVE,
    MESSAGE,
    Begin,
    Commit,
    Garbled,
    Relation,
    decode,
    keep_alive,
)
from thresher.tail.position import Position

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# About what a header takes in memory, whatever its size in the WAL; and how often the bytes of a row with a flaw are in
# memory at once.
_HEADER_BYTES, _FLAWED_TIMES = 100, 3
# Places in a row: the names of its headers, and its flaw. A row with a flaw may carry the original values behind.
_HEADERS, _FLAW, _WITHOUT_ORIGINALS = 5, 9, 11
# A data frame with a message in it, up to the message's prefix: frame header, then its kind, flags and position.
_MESSAGE_FRAME, _LENGTH = Struct(">BQQqBBQ"), Struct(">I")


class RefusedMessage(NamedTuple):
    """A message that is not published: its position, its transaction, and the reason."""

    position: int
    xid: int
    why: Refusal


class LogReader:
    """The state of one stream. For one thread.

    `received` is the highest position that the server named. `reply` is set when the server asks for a status report;
    the thread that sends the report clears it.
    """

    def __init__(self, source: Source, keys: LogKeys | None = None) -> None:
        """`keys`: those that messages are sealed with, for a source without a table."""
        self._source = source
        self._prefix = f"{log_prefix(source.outbox)}\0".encode() if isinstance(source, LogSource) else None
        self._seals = None if self._prefix is None or keys is None else Seals(self._prefix, keys)
        # How many messages were not published, because the outbox's function did not write them; and the last of them.
        self.refused = 0
        self.last_refused: RefusedMessage | None = None
        # OID of a relation → the reader of its rows; None if it is not our table.
        self._tables: dict[int, InsertedRows | None] = {}
        # The transaction that is being read (None between two), its commit time, and its last change that was counted.
        self._begin: Begin | None = None
        self._committed = _EPOCH
        self._change, self._place = 0, 0
        self._chunk = Chunk()
        self._ended = 0
        self.received = 0
        self.reply = False

    @property
    def rows(self) -> int:
        """How many rows were read and not yet taken."""
        return len(self._chunk.rows)

    @property
    def size(self) -> int:
        """How many bytes were read and not yet taken."""
        return self._chunk.size

    def take(self) -> Chunk | None:
        """Return what was read since the last call; None if that is nothing."""
        chunk = self._chunk
        if not chunk.rows and chunk.idle_at is None and chunk.ended == self._ended:
            return None
        self._ended = chunk.ended
        self._chunk = Chunk(ended=chunk.ended)
        return chunk

    def feed(self, frame: bytes) -> None:
        """Read a frame. Raises `Garbled` if it is malformed, `DatabaseRefused` if the table was changed."""
        if frame[0] != DATA:
            self._feed_keep_alive(frame)
            return
        try:
            kind = frame[DATA_HEADER.size]
            if kind == INSERT:
                at = self._feed_insert(frame)
            elif kind == MESSAGE:
                at = self._feed_message(frame)
            else:
                _, at, end, _ = DATA_HEADER.unpack_from(frame)
                at = max(at, end)
                self._feed_other(frame[DATA_HEADER.size :])
        except (struct_error, IndexError, UnicodeDecodeError):
            raise Garbled(f"a frame of {len(frame)} bytes from the server cannot be read") from None
        if at > self.received:  # noqa: PLR1730 - a call would cost more than it says
            self.received = at

    def _feed_insert(self, frame: bytes) -> int:
        at: int
        _, at, _, _, _, relation, _, columns = INSERT_FRAME.unpack_from(frame)
        try:
            table = self._tables[relation]
        except KeyError:
            raise Garbled("a row came from the server before its table was described") from None
        if table is not None:
            row = table.row(frame, columns)
            self._count(at)
            if row is not None:
                self._add(row, len(frame))
        return at

    def _feed_message(self, frame: bytes) -> int:
        at: int
        _, at, _, _, _, flags, position = _MESSAGE_FRAME.unpack_from(frame)
        prefix, seals = self._prefix, self._seals
        # A non-transactional message is ignored: it is in the WAL even if its transaction rolls back.
        if seals and prefix is not None and flags & 1 and frame.startswith(prefix, _MESSAGE_FRAME.size):
            start = _MESSAGE_FRAME.size + len(prefix) + 4
            if _LENGTH.unpack_from(frame, start - 4)[0] != len(frame) - start:
                raise Garbled("a message that came from the server is cut short")
            content = seals.opened(frame[start:], position)
            if isinstance(content, Refusal):
                self.refused += 1
                self.last_refused = RefusedMessage(position=position, xid=self._transaction().xid, why=content)
                return at
            rows = message_rows(position, self._committed, content)
            size = len(frame) // len(rows)
            for row in rows:
                self._count(at)
                self._add(row, size)
        return at

    def _feed_other(self, message: bytes) -> None:
        change = decode(message)
        if isinstance(change, Begin):
            self._begin, self._change = change, 0
            self._committed = _EPOCH + timedelta(0, 0, change.commit_time)
            if self._seals:
                self._seals.begin(change.xid)
        elif isinstance(change, Commit):
            if self._transaction().commit != change.commit:
                raise Garbled("the server committed another transaction than it began")
            self._begin = None
            self._chunk.ended = change.end
        elif isinstance(change, Relation):
            self._tables[change.id] = self._rows_of(change)

    def _feed_keep_alive(self, frame: bytes) -> None:
        if frame[0] != KEEP_ALIVE:
            raise Garbled(f"a frame of an unknown kind, {frame[0]}, came from the server")
        position, reply = keep_alive(frame)
        self.reply = self.reply or reply
        self.received = max(self.received, position)
        # Inside a transaction, the position says nothing about the rest of it.
        if self._begin is None:
            self._chunk.idle_at = position

    def _count(self, change: int) -> None:
        """Count a change among those of the same position directly before it."""
        self._place = self._place + 1 if change == self._change else 0
        self._change = change

    def _transaction(self) -> Begin:
        if self._begin is None:
            raise Garbled("a change came from the server outside of any transaction")
        return self._begin

    def _add(self, row: PendingRow, size: int) -> None:
        """Add the row of the change that was counted last."""
        commit, commit_time, _ = self._begin or self._transaction()
        chunk = self._chunk
        # The same as `Position(…)`, without the cost of its Python-level constructor.
        chunk.positions.append(tuple.__new__(Position, (commit, self._change, self._place)))
        chunk.rows.append(row)
        chunk.commit_times.append(commit_time)
        if row[_HEADERS] or row[_FLAW] is not None:
            size = size * _FLAWED_TIMES if len(row) > _WITHOUT_ORIGINALS else size + _HEADER_BYTES * len(row[_HEADERS])
        chunk.size += size
        # A position that the server reported before this row is out of date.
        chunk.idle_at = None

    def _rows_of(self, relation: Relation) -> InsertedRows | None:
        source = self._source
        if isinstance(source, LogSource):
            return None
        if relation.id == source.number:
            return InsertedRows(relation, source.shape)
        if relation.name != source.table.table:
            return None
        if source.table.schema is None:
            raise DatabaseRefused(
                f"the schema of {source.table} is not known, and the WAL names tables with theirs: set 'schema'"
            )
        return InsertedRows(relation, source.shape) if relation.schema == source.table.schema else None
