"""Which changes a committed progress record covers, and up to where the server may discard the WAL. Pure.

1. A change is decided once it was sent, filtered by a transform, or moved to the dead table. A record covers every
   change up to its position, except those that it names as waiting. A covered change is never sent again. A change that
   it names as dead is written to the dead table, again after a crash.
2. The server may discard the WAL up to the end of a commit before which every change is decided. A record notes that
   position before the slot is confirmed there. So a slot beyond the noted position was advanced or recreated by others.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from thresher.delivery.fate import Dead
from thresher.tail.position import Position

# Before every change.
START = Position(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The changes that a record covers: all up to `position`, except those in `waiting`."""

    position: Position = START
    waiting: frozenset[Position] = frozenset()
    # Changes that can never be sent, among those that the record's own transaction decided.
    dead: Mapping[Position, Dead] = field(default_factory=dict)
    # The slot may be confirmed up to here, so that the server may discard the WAL before it.
    noted: int = 0
    # Commit time of the newest change that is covered, in microseconds since 1970; 0 if unknown.
    committed_us: int = 0

    def decides(self, position: Position) -> bool:
        """Whether the change at this position was decided: sent, filtered or dead."""
        return position <= self.position and position not in self.waiting


class Ends:
    """Positions between two commits, as the stream reports them: the slot may be confirmed at each of them."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    def add(self, lsn: int) -> None:
        """Add the end of a commit whose changes were all read, or a position before which no more changes come."""
        if lsn and (not self._ends or lsn > self._ends[-1]):
            self._ends.append(lsn)
        elif lsn and lsn not in self._ends:
            insort(self._ends, lsn)

    @property
    def last(self) -> int:
        """The newest position; 0 without any."""
        return self._ends[-1] if self._ends else 0

    def before(self, undecided: Position | None) -> int:
        """Return the newest position at or before the commit of the oldest undecided change; 0 if there is none."""
        if undecided is None:
            return self.last
        place = bisect_right(self._ends, undecided.commit)
        return self._ends[place - 1] if place else 0

    def forget(self, upto: int) -> None:
        """Drop the positions before the newest one up to `upto`."""
        place = bisect_right(self._ends, upto)
        if place > 1:
            del self._ends[: place - 1]
