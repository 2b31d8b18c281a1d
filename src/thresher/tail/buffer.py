"""The changes that were read from the log and are not decided: they play the table that a relay would read.

1. A read gives the oldest changes that are not in flight and not held, in the order of the log.
2. A change leaves the buffer when a committed progress record decides it. So rows that go back to "the table" still are
   here, and a rejection costs no second look at the log.
3. What the last committed record covers is left out as it comes from the log again. A change that it names as dead is
   handed out to be set aside once more. Nothing else is given before that is done, and each record names it until then.
   What a record names has to come again: a log without it is not the one that was read before.
4. A progress record names the undecided changes that others have overtaken. Beyond a number of them, all wait. When the
   buffer is full, the log is not read on.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thresher.db.lsn import lsn_text
from thresher.db.outbox_store import PendingRow
from thresher.delivery.fate import Dead
from thresher.delivery.reading.row_source import ReadRequest
from thresher.tail.chunk import Chunk
from thresher.tail.coverage import START, Coverage, Ends
from thresher.tail.position import Position
from thresher.tail.problem import LogLost

# A row's columns, without and with what chooses its partition.
_SENDABLE, _GIVEN = 10, 11


class Change(NamedTuple):
    """A change of the log. `given` is its row with the buffer's own number for an id: that one is never repeated."""

    position: Position
    id: int
    given: PendingRow
    size: int
    commit_us: int
    # Of a row with a flaw, what nobody could send.
    more: PendingRow = ()

    @property
    def row(self) -> PendingRow:
        """The row as it was written, with its own id."""
        return (self.id, *self.given[1:], *self.more)


class DeadChange(NamedTuple):
    """A change that can never be sent, whole, and why."""

    row: PendingRow
    fate: Dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may be held: rows and bytes of all changes; and how many may wait while others go on."""

    rows: int = 100_000
    bytes: int = 64_000_000
    waiting: int = 10_000


class LogBuffer:
    """The changes of one attempt. Safe from the reader's thread, the task's own and the settler's."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._changed = threading.Condition()
        self._next = 1
        # By number, in the order of the log.
        self._changes: dict[int, Change] = {}
        self._bytes = 0
        self._coverage = Coverage()
        self._ends = Ends()
        # Where the server begins to send, and the newest position that came from it.
        self._begins = 0
        self._seen = START
        # What the coverage names and has not come yet: its own position, those that wait, and dead ones.
        self._last: set[Position] = set()
        self._unseen: set[Position] = set()
        self._owed: dict[Position, Dead] = {}
        # Dead ones that have come, and are not set aside yet.
        self._unpaid: dict[Position, Dead] = {}

    # For the reader

    @property
    def room(self) -> tuple[int, int]:
        """How many rows and bytes more it takes; nothing of either when it is full."""
        rows, size = self._bounds.rows - len(self._changes), self._bounds.bytes - self._bytes
        return (rows, size) if rows > 0 and size > 0 else (0, 0)

    def begin_at(self, confirmed: int) -> None:
        """Take in where the server begins to send: dead changes before that were set aside before it was told."""
        with self._changed:
            self._ends.add(confirmed)
            self._begins = confirmed
            self._await(self._last, self._unseen, self._owed)

    def add(self, chunk: Chunk) -> list[DeadChange]:
        """Take in what was read; return the dead changes that have to be set aside again, which `paid` then says.

        Raises `LogLost` if what the coverage names is not in this log.
        """
        owed: list[DeadChange] = []
        with self._changed:
            number, covered, changes = self._next, self._coverage.position, self._changes
            each, new = chunk.size // max(1, len(chunk.rows)), tuple.__new__
            for position, row, commit_us in zip(chunk.positions, chunk.rows, chunk.commit_times, strict=True):
                if position <= covered:
                    self._last.discard(position)
                    if position in self._owed:
                        self._unpaid[position] = self._owed.pop(position)
                        owed.append(DeadChange(row, self._unpaid[position]))
                    if self._coverage.decides(position):
                        continue
                    self._unseen.discard(position)
                if len(row) <= _GIVEN:
                    # As the class itself does it, without the call.
                    changes[number] = new(Change, (position, row[0], (number, *row[1:]), each, commit_us, ()))
                else:
                    given, more = (number, *row[1:_SENDABLE]), row[_SENDABLE:]
                    changes[number] = Change(position, row[0], given, each, commit_us, more)
                number += 1
            self._bytes += each * (number - self._next)
            self._next = number
            if chunk.positions:
                self._seen = chunk.positions[-1]
            self._ends.add(chunk.ended)
            if chunk.idle_at is not None:
                self._ends.add(chunk.idle_at)
            self._require_named()
        return owed

    def paid(self) -> None:
        """The dead changes that the last `add` returned are set aside, durably."""
        with self._changed:
            self._unpaid.clear()
            self._changed.notify_all()

    def take(self, request: ReadRequest) -> tuple[list[PendingRow], int]:
        """Return the oldest changes that are wanted, each with its number for an id, and about what they take."""
        held, keys, rows, in_flight = set(request.held), set(request.held_keys), request.held_rows, request.in_flight
        found: list[PendingRow] = []
        left = size = 0
        with self._changed:
            if self._owed or self._unpaid:
                return found, 0
            for number, change in self._changes.items():
                if number in in_flight:
                    continue
                given = change.given
                if (
                    (held and given[2] in held)
                    or (rows and number in rows)
                    or (keys and given[3] is not None and (given[2], given[3]) in keys)
                ):
                    left += 1
                    if left >= self._bounds.waiting:
                        break
                    continue
                found.append(given)
                size += change.size
                if len(found) >= request.rows or size >= request.bytes:
                    break
        return found, size

    def await_room(self, seconds: float) -> None:
        """Wait until changes have left, at most so long."""
        with self._changed:
            self._changed.wait(seconds)

    # For the protocol

    def after(self, numbers: Sequence[int]) -> Coverage:
        """Return what a record covers that decides these changes besides what was decided before."""
        with self._changed:
            mine = set(numbers)
            position, committed_us = self._coverage.position, self._coverage.committed_us
            if mine:
                last = self._changes[max(mine)]
                position, committed_us = max(position, last.position), max(committed_us, last.commit_us)
            waiting = set(self._unseen)
            oldest = min(waiting, default=None)
            for number, change in self._changes.items():
                if number in mine:
                    continue
                oldest = change.position if oldest is None else min(oldest, change.position)
                if change.position > position:
                    break
                waiting.add(change.position)
            owed = {**self._unpaid, **self._owed}
            noted = max(self._coverage.noted, 0 if owed else self._ends.before(oldest))
            return Coverage(
                position=position, waiting=frozenset(waiting), dead=owed, noted=noted, committed_us=committed_us
            )

    def dead_of(self, fates: Iterable[tuple[int, Dead]]) -> dict[Position, DeadChange]:
        """Return dead changes by position, whole, from their numbers and fates."""
        with self._changed:
            found = {number: self._changes[number] for number, _ in fates}
            return {found[number].position: DeadChange(found[number].row, fate) for number, fate in fates}

    def decide(self, numbers: Iterable[int], coverage: Coverage) -> None:
        """A committed record has decided these changes, and covers this much."""
        with self._changed:
            for number in numbers:
                change = self._changes.pop(number, None)
                self._bytes -= 0 if change is None else change.size
            self._coverage = coverage
            self._ends.forget(coverage.noted)
            self._changed.notify_all()

    def cover(self, coverage: Coverage) -> list[DeadChange]:
        """Take in the record that recovery found; return the dead changes it names that are here, to be set aside.

        Those that have not come from the log yet are handed out by `add` when they come.
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
            self._await({coverage.position} - {START}, coverage.waiting, coverage.dead)
            self._changed.notify_all()
        return dead

    def _await(self, last: Iterable[Position], waiting: Iterable[Position], dead: Mapping[Position, Dead]) -> None:
        """Expect what is named here from the log, as far as the server sends it and it has not come yet.

        Whatever came before in this attempt was settled by it, or is here. Dead changes before the place where the
        server begins were set aside before it was told to forget them.
        """

        def comes(position: Position) -> bool:
            return position > self._seen and position.commit >= self._begins

        self._last = {position for position in last if comes(position)}
        self._unseen = {position for position in waiting if comes(position)}
        self._owed = {position: fate for position, fate in dead.items() if comes(position)}

    def _require_named(self) -> None:
        """Raise `LogLost` if the log went on beyond what the coverage names, and it did not come."""
        oldest = min((*self._last, *self._unseen, *self._owed), default=None)
        if oldest is not None and (self._seen > oldest or self._ends.last > oldest.commit):
            raise LogLost(
                "this is another log than the one that was published from: it goes on behind "
                f"{lsn_text(oldest.commit)} without the change that progress names there, as after a snapshot of the "
                "database's files was put back. What was committed since then may be missing in Kafka: drop the slot, "
                "'thresher tail slot create', 'thresher adopt' the tail, and insert the rows that are missing anew"
            )

    @property
    def coverage(self) -> Coverage:
        """What the last record that was committed or found covers."""
        return self._coverage

    @property
    def owes(self) -> bool:
        """Whether dead changes that the coverage names have not come from the log yet, or are not set aside yet."""
        return bool(self._owed or self._unpaid)

    @property
    def quiet_at(self) -> int | None:
        """Up to where the log may be forgotten, if nothing that was read is undecided; None if something is."""
        with self._changed:
            if self._changes or self._owed or self._unpaid or self._unseen:
                return None
            return max(self._ends.last, self._coverage.noted)

    @property
    def oldest_us(self) -> int | None:
        """When the oldest change that is not decided was committed, in microseconds since 1970; None without any."""
        with self._changed:
            oldest = next(iter(self._changes.values()), None)
            return None if oldest is None else oldest.commit_us

    @property
    def rows(self) -> int:
        """How many changes it holds."""
        return len(self._changes)

    @property
    def bytes(self) -> int:
        """About what they take."""
        return self._bytes
