"""Whether the load moves on: rows leave the outbox, or offsets pass messages."""

from collections.abc import Callable
from dataclasses import dataclass

_LOOK_SECONDS = 1.0
# How many rows there are, how many of them up to an id, and the highest id; None if nobody answers.
Counted = Callable[[int], tuple[int, int, int] | None]


@dataclass(frozen=True, slots=True)
class Look:
    """How many wait, and whether any has left since the look before."""

    waiting: int
    moved: bool


class Leaving:
    """Looks at an outbox, to which rows are added all the time."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._last = self._before = 0

    def look(self) -> Look | None:
        """Count; None if nobody answers."""
        if (found := self._counted(self._last)) is None:
            return None
        waiting, left, highest = found
        moved = left < self._before
        self._last, self._before = highest, waiting
        return Look(waiting, moved)


@dataclass
class Movement:
    """When something was last seen to move."""

    moved: float = 0.0
    waiting: int = 0
    _looked: float = 0.0

    def look(self, now: float, look: Callable[[], Look | None]) -> None:
        """Look, now and then."""
        if now - self._looked < _LOOK_SECONDS or (found := look()) is None:
            return
        self._looked = now
        self.waiting = found.waiting
        if found.moved or not found.waiting:
            self.moved = now

    def still(self, now: float) -> float:
        """For how long nothing has moved."""
        return now - self.moved
