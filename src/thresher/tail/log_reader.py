"""Puts what the server sends into chunks: which rows are ours, their positions, and how far the log was read.

Pure: frames in, chunks out. Only transactions that were committed come, one after another, whole.
"""

from struct import error as struct_error

from thresher.db.log_names import log_prefix
from thresher.db.problem import DatabaseRefused
from thresher.tail.chunk import Chunk
from thresher.tail.log_rows import InsertedRows, LogRow, message_row
from thresher.tail.log_source import LogSource, Source
from thresher.tail.pgoutput import (
    DATA,
    DATA_HEADER,
    INSERT,
    INSERT_HEADER,
    KEEP_ALIVE,
    Begin,
    Commit,
    Garbled,
    LogMessage,
    Relation,
    decode,
    keep_alive,
)
from thresher.tail.position import Position


class LogReader:
    """The state of one stream. For one thread.

    `received` is the highest position that the server named; `reply` is set where it asks for a report, by whoever
    has sent one taken back.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._prefix = log_prefix(source.outbox) if isinstance(source, LogSource) else None
        # By the number of a relation, what reads its rows; None where it is not ours.
        self._tables: dict[int, InsertedRows | None] = {}
        # The transaction that is being read, None between two; and the last change of it that was counted.
        self._begin: Begin | None = None
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
        """Return what was read since the last time; None if nothing was."""
        chunk = self._chunk
        if not chunk.rows and chunk.idle_at is None and chunk.ended == self._ended:
            return None
        self._ended = chunk.ended
        self._chunk = Chunk(ended=chunk.ended)
        return chunk

    def feed(self, frame: bytes) -> None:
        """Read a frame. Raises `Garbled`, and `DatabaseRefused` where the table is not what it should be."""
        if frame[0] != DATA:
            self._feed_keep_alive(frame)
            return
        try:
            _, at, end, _ = DATA_HEADER.unpack_from(frame)
            kind = frame[DATA_HEADER.size]
            if kind == INSERT:
                self._feed_insert(frame, at)
            else:
                self._feed_other(frame[DATA_HEADER.size :], at)
        except (struct_error, IndexError, UnicodeDecodeError):
            raise Garbled(f"a frame of {len(frame)} bytes from the server cannot be read") from None
        if at > self.received or end > self.received:
            self.received = max(at, end, self.received)

    def _feed_insert(self, frame: bytes, at: int) -> None:
        relation = INSERT_HEADER.unpack_from(frame, DATA_HEADER.size)[1]
        try:
            table = self._tables[relation]
        except KeyError:
            raise Garbled("a row came from the server before its table was described") from None
        if table is None:
            return
        position = self._position(at)
        if (row := table.row(frame, DATA_HEADER.size)) is not None:
            self._add(position, row)

    def _feed_other(self, message: bytes, at: int) -> None:
        # Most messages of the log are ours or nobody's: of others only the prefix is looked at.
        change = decode(message)
        if isinstance(change, LogMessage):
            # One that is not part of a transaction is not ours: it would be there before, or without, its commit.
            if change.transactional and change.prefix == self._prefix:
                self._add(self._position(at), message_row(change, self._transaction().commit_time))
        elif isinstance(change, Begin):
            self._begin, self._change = change, 0
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
        # Inside of a transaction, the rest of it is still to come.
        if self._begin is None:
            self._chunk.idle_at = position

    def _position(self, change: int) -> Position:
        place = self._place + 1 if change == self._change else 0
        self._change, self._place = change, place
        return Position(self._transaction().commit, change, place)

    def _transaction(self) -> Begin:
        if self._begin is None:
            raise Garbled("a change came from the server outside of any transaction")
        return self._begin

    def _add(self, position: Position, found: LogRow) -> None:
        chunk = self._chunk
        chunk.positions.append(position)
        chunk.rows.append(found.row)
        chunk.commit_times.append(self._transaction().commit_time)
        chunk.size += found.size
        # Rows come behind it, and what the server said before them is old.
        chunk.idle_at = None

    def _rows_of(self, relation: Relation) -> InsertedRows | None:
        source = self._source
        if isinstance(source, LogSource) or relation.name != source.table.table:
            return None
        if source.table.schema is None:
            raise DatabaseRefused(f"in which schema is {source.table}? The log names tables with theirs")
        return InsertedRows(relation, source.shape) if relation.schema == source.table.schema else None
