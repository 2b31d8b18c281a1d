"""Which changes a committed progress record covers, and up to where the server may discard the WAL. Pure.

1. A change is decided once it was sent, filtered by a transform, or moved to the dead table. A record covers every
   change up to its position, except those that it names as waiting. A covered change is never sent again. A change that
   it names as dead is written to the dead table, again after a crash.
2. The server may discard the WAL up to the end of a commit before which every change is decided. A record notes that
   position before the slot is confirmed there. So a slot beyond the noted position was advanced or recreated by others.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from thresher.db.lsn import lsn_text
from thresher.delivery.fate import Dead
from thresher.tail.position import Position
from thresher.tail.problem import LogLost

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


class Expected:
    """The changes that a coverage names and the server has not sent again yet: at its position, waiting, and dead."""

    def __init__(self) -> None:
        self.last: set[Position] = set()
        self.waiting: set[Position] = set()
        self.dead: dict[Position, Dead] = {}
        # The newest position that the server has sent, and where it begins to send.
        self.seen = START
        self._begins = 0

    def begin_at(self, confirmed: int) -> None:
        """Set where the server begins to send: what lies before it is not expected."""
        self._begins = confirmed
        self.expect(self.last, self.waiting, self.dead)

    def expect(self, last: Iterable[Position], waiting: Iterable[Position], dead: Mapping[Position, Dead]) -> None:
        """Expect from the server the changes that are named here, unless it does not send them or has sent them.

        A change that came earlier in this attempt was settled by it, or is in the buffer. Dead changes before the
        position where the server begins were in the dead table before the slot was confirmed there.
        """

        def comes(position: Position) -> bool:
            return position > self.seen and position.commit >= self._begins

        self.last = {position for position in last if comes(position)}
        self.waiting = {position for position in waiting if comes(position)}
        self.dead = {position: fate for position, fate in dead.items() if comes(position)}

    def require_sent(self, upto: int) -> None:
        """Raise `LogLost` if the server, whose last end of a commit is `upto`, is beyond an expected change."""
        oldest = min((*self.last, *self.waiting, *self.dead), default=None)
        if oldest is not None and (self.seen > oldest or upto > oldest.commit):
            raise LogLost(
                "this is not the WAL that was published from: it goes on after "
                f"{lsn_text(oldest.commit)} without the change that the last progress record names there. This happens "
                "after a snapshot of the database's files was restored. Rows that were committed since then may be "
                "missing in Kafka: run 'thresher tail slot drop', 'thresher tail slot create' and 'thresher adopt' for "
                "this tail, then insert the missing rows again"
            )
