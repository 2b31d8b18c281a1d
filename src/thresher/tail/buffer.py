"""The changes that were read from the WAL and are not decided yet. The buffer takes the place of a relay's table.

1. A read returns the oldest changes that are neither in flight nor held, in the order of the WAL.
2. A change leaves the buffer when a committed progress record decides it. So rows that a relay would leave in the table
   stay here, and after a rejected transaction the WAL need not be read again.
3. A change that the last committed record covers is skipped when the server sends it again. If the record names it as
   dead, it is handed out to be written to the dead table once more. Until that is done, no read returns anything, and
   each new record names it too. If the server does not send a change that a record names, this is another WAL.
4. A progress record names the undecided changes that newer ones have overtaken. Their size there is bounded: at the
   bound, reads return no newer changes. When the buffer is full, no more of the WAL is read. While nothing is read for
   one of these reasons, the buffer is **blocked**: rows wait that might be sent.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thresher.db.outbox_store import PendingRow
from thresher.delivery.fate import Dead
from thresher.delivery.reading.row_source import ReadRequest
from thresher.tail.chunk import Chunk
from thresher.tail.coverage import START, Coverage, Ends, Expected
from thresher.tail.position import PackedSize, Position

# No position is packed into more bytes.
_POSITION_BYTES = 24
# A row's number of columns, without and with the one that chooses its partition.
_SENDABLE, _GIVEN = 10, 11


class Change(NamedTuple):
    """A change of the WAL. `given` is its row with the buffer's own number as id: no two changes have the same."""

    position: Position
    id: int
    given: PendingRow
    size: int
    commit_us: int
    # For a row with a flaw: the columns that cannot be sent, for the dead table.
    more: PendingRow = ()

    @property
    def row(self) -> PendingRow:
        """The row as its writer inserted it, with its own id."""
        return (self.id, *self.given[1:], *self.more)


class DeadChange(NamedTuple):
    """A change that can never be sent, with all its columns, and the reason."""

    row: PendingRow
    fate: Dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may be held: rows and bytes of all changes, and of those that wait while newer ones are published.

    `waiting_bytes` is the size of their packed positions.
    """

    rows: int = 100_000
    bytes: int = 64_000_000
    waiting: int = 10_000_000
    waiting_bytes: int = 250_000


class LogBuffer:
    """The changes of one attempt. Safe to use from the threads of the reader, the task and the settler."""

    def __init__(self, bounds: Bounds, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds, self._clock = bounds, clock
        # Since when no read has returned a row because of a bound.
        self._blocked_since: float | None = None
        self._changed = threading.Condition()
        self._next = 1
        # The buffer's number → change, in the order of the WAL.
        self._changes: dict[int, Change] = {}
        self._bytes = 0
        self._coverage = Coverage()
        self._ends = Ends()
        self._expected = Expected()
        # Dead changes that the server has sent again, and that are not in the dead table yet.
        self._unwritten_dead: dict[Position, Dead] = {}

    # For the reader

    @property
    def room(self) -> tuple[int, int]:
        """How many more rows and bytes fit; (0, 0) when the buffer is full in either."""
        rows, size = self._bounds.rows - len(self._changes), self._bounds.bytes - self._bytes
        return (rows, size) if rows > 0 and size > 0 else (0, 0)

    def begin_at(self, confirmed: int) -> None:
        """Set where the server begins to send. Dead changes before it are not expected: they were written earlier."""
        with self._changed:
            self._ends.add(confirmed)
            self._expected.begin_at(confirmed)

    def add(self, chunk: Chunk) -> list[DeadChange]:
        """Add what was read. Return the dead changes to write to the dead table again before `dead_written`.

        Raises `LogLost` if a change that the coverage names is not in this WAL.
        """
        dead: list[DeadChange] = []
        with self._changed:
            number, covered, changes, expected = self._next, self._coverage.position, self._changes, self._expected
            each, new = chunk.size // max(1, len(chunk.rows)), tuple.__new__
            for position, row, commit_us in zip(chunk.positions, chunk.rows, chunk.commit_times, strict=True):
                if position <= covered:
                    expected.last.discard(position)
                    if position in expected.dead:
                        self._unwritten_dead[position] = expected.dead.pop(position)
                        dead.append(DeadChange(row, self._unwritten_dead[position]))
                    if self._coverage.decides(position):
                        continue
                    expected.waiting.discard(position)
                if len(row) <= _GIVEN:
                    # The same as `Change(…)`, without the cost of its Python-level constructor.
                    changes[number] = new(Change, (position, row[0], (number, *row[1:]), each, commit_us, ()))
                else:
                    given, more = (number, *row[1:_SENDABLE]), row[_SENDABLE:]
                    changes[number] = Change(position, row[0], given, each, commit_us, more)
                number += 1
            self._bytes += each * (number - self._next)
            self._next = number
            if chunk.positions:
                self._expected.seen = chunk.positions[-1]
            self._ends.add(chunk.ended)
            if chunk.idle_at is not None:
                self._ends.add(chunk.idle_at)
            self._expected.require_sent(self._ends.last)
        return dead

    def dead_written(self) -> None:
        """Note that the dead changes that `add` returned are durably in the dead table."""
        with self._changed:
            self._unwritten_dead.clear()
            self._changed.notify_all()

    def take(self, request: ReadRequest) -> tuple[list[PendingRow], int]:
        """Return the oldest changes that the request allows, each with its number as id, and about their bytes."""
        held, keys, rows, in_flight = set(request.held), set(request.held_keys), request.held_rows, request.in_flight
        chosen = bool(held) or request.among
        found: list[PendingRow] = []
        left: list[Position] = []
        size, packed, crowded = 0, PackedSize(), False
        with self._changed:
            if self._expected.dead or self._unwritten_dead:
                return found, 0
            for number, change in self._changes.items():
                if number in in_flight:
                    continue
                given = change.given
                if (
                    (chosen and (given[2] in held) != request.among)
                    or (rows and number in rows)
                    or (keys and given[3] is not None and (given[2], given[3]) in keys)
                ):
                    left.append(change.position)
                    if crowded := self._crowded(left, packed):
                        break
                    continue
                found.append(given)
                size += change.size
                if len(found) >= request.rows or size >= request.bytes:
                    break
            if not request.sweeping:
                self._note_blocked(not found and (crowded or self.room == (0, 0)))
        return found, size

    def _crowded(self, left: Sequence[Position], packed: PackedSize) -> bool:
        """Whether no more changes may be overtaken than these, or their positions would not fit into a record."""
        if len(left) >= self._bounds.waiting:
            return True
        most = self._bounds.waiting_bytes
        return len(left) * _POSITION_BYTES > most and packed.of(left) > most

    def _note_blocked(self, blocked: bool) -> None:
        if not blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = self._clock()

    @property
    def blocked_seconds(self) -> float:
        """For how long rows have waited behind others because of a bound; 0 if none does."""
        since = self._blocked_since
        return 0.0 if since is None else self._clock() - since

    def await_room(self, seconds: float) -> None:
        """Wait until changes have left the buffer, at most `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    # For the protocol

    def after(self, numbers: Sequence[int]) -> Coverage:
        """Return the coverage of a record that decides these changes in addition to those decided before."""
        with self._changed:
            mine = set(numbers)
            position, committed_us = self._coverage.position, self._coverage.committed_us
            if mine:
                last = self._changes[max(mine)]
                position, committed_us = max(position, last.position), max(committed_us, last.commit_us)
            waiting = set(self._expected.waiting)
            oldest = min(waiting, default=None)
            for number, change in self._changes.items():
                if number in mine:
                    continue
                oldest = change.position if oldest is None else min(oldest, change.position)
                if change.position > position:
                    break
                waiting.add(change.position)
            dead = {**self._unwritten_dead, **self._expected.dead}
            noted = max(self._coverage.noted, 0 if dead else self._ends.before(oldest))
            return Coverage(
                position=position, waiting=frozenset(waiting), dead=dead, noted=noted, committed_us=committed_us
            )

    def dead_of(self, fates: Iterable[tuple[int, Dead]]) -> dict[Position, DeadChange]:
        """Return dead changes by position, with all their columns, from their numbers and fates."""
        with self._changed:
            found = {number: self._changes[number] for number, _ in fates}
            return {found[number].position: DeadChange(found[number].row, fate) for number, fate in fates}

    def decide(self, numbers: Iterable[int], coverage: Coverage) -> None:
        """Remove the changes that a committed record has decided, and remember its coverage."""
        with self._changed:
            for number in numbers:
                change = self._changes.pop(number, None)
                self._bytes -= 0 if change is None else change.size
            self._coverage = coverage
            self._ends.forget(coverage.noted)
            self._changed.notify_all()

    def cover(self, coverage: Coverage) -> list[DeadChange]:
        """Set the coverage of the record that recovery found. Return its dead changes that are in the buffer.

        The caller writes them to the dead table. `add` returns the others when the server sends them.
        """
        dead: list[DeadChange] = []
        with self._changed:
            for number, change in list(self._changes.items()):
                if change.position > coverage.position:
                    break
                if not coverage.decides(change.position):
                    continue
                if change.position in coverage.dead:
                    dead.append(DeadChange(change.row, coverage.dead[change.position]))
                del self._changes[number]
                self._bytes -= change.size
            self._coverage = coverage
            self._expected.expect({coverage.position} - {START}, coverage.waiting, coverage.dead)
            self._changed.notify_all()
        return dead

    @property
    def coverage(self) -> Coverage:
        """The coverage of the last record that was committed or found by recovery."""
        return self._coverage

    @property
    def has_unwritten_dead(self) -> bool:
        """Whether dead changes that the coverage names were not sent again yet, or are not in the dead table yet."""
        return bool(self._expected.dead or self._unwritten_dead)

    @property
    def quiet_at(self) -> int | None:
        """Up to where the server may discard the WAL if every change that was read is decided; None otherwise."""
        with self._changed:
            if self._changes or self._expected.dead or self._unwritten_dead or self._expected.waiting:
                return None
            return max(self._ends.last, self._coverage.noted)

    @property
    def oldest_us(self) -> int | None:
        """Commit time of the oldest undecided change, in microseconds since 1970; None without any."""
        with self._changed:
            oldest = next(iter(self._changes.values()), None)
            return None if oldest is None else oldest.commit_us

    @property
    def rows(self) -> int:
        """How many changes the buffer holds."""
        return len(self._changes)

    @property
    def bytes(self) -> int:
        """About how many bytes the changes take."""
        return self._bytes
