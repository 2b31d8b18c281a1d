"""What a committed progress record decides of the log, and how far the log may be forgotten. Pure.

1. A record covers every change up to its position, except those that it names as waiting. What it covers is never sent
   again; what it names as dead is set aside, again if need be.
2. The server may forget the log up to a commit's end before which nothing is undecided. A record notes that position
   before the server is told: a slot that is beyond the noted position was moved or made anew.
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
    """What a record says of changes: all up to the position are decided, except those that wait."""

    position: Position = START
    waiting: frozenset[Position] = frozenset()
    # Those that can never be sent, among what the record's own transaction decided.
    dead: Mapping[Position, Dead] = field(default_factory=dict)
    # Up to where the server may have been told to forget the log.
    noted: int = 0
    # When the newest change that it covers was committed, in microseconds since 1970; 0 if that is not known.
    committed_us: int = 0

    def decides(self, position: Position) -> bool:
        """Whether the change at this position was decided: sent, filtered or set aside."""
        return position <= self.position and position not in self.waiting


class Ends:
    """Positions between two commits, as the stream tells them: where the server may begin to send again."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    def add(self, lsn: int) -> None:
        """Take in the end of a commit all of whose changes were read, or a position before which no more comes."""
        if lsn and (not self._ends or lsn > self._ends[-1]):
            self._ends.append(lsn)
        elif lsn and lsn not in self._ends:
            insort(self._ends, lsn)

    @property
    def last(self) -> int:
        """The newest of them; 0 if there is none."""
        return self._ends[-1] if self._ends else 0

    def before(self, undecided: Position | None) -> int:
        """Return the newest end that does not lie behind the commit of the oldest undecided change; 0 if none does."""
        if undecided is None:
            return self.last
        place = bisect_right(self._ends, undecided.commit)
        return self._ends[place - 1] if place else 0

    def forget(self, upto: int) -> None:
        """Forget all that lie before this one."""
        place = bisect_right(self._ends, upto)
        if place > 1:
            del self._ends[: place - 1]
