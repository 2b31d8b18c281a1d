"""Whether rows leave the outbox."""

from collections.abc import Callable
from dataclasses import dataclass

_LOOK_SECONDS = 1.0
# How many rows there are, how many of them up to an id, and the highest id; None if nobody answers.
Counted = Callable[[int], tuple[int, int, int] | None]


@dataclass
class Movement:
    """When rows were last seen to leave the outbox."""

    moved: float = 0.0
    waiting: int = 0
    _looked: float = 0.0
    _last: int = 0
    _before: int = 0

    def look(self, now: float, counted: Counted) -> None:
        """Count, now and then."""
        if now - self._looked < _LOOK_SECONDS or (found := counted(self._last)) is None:
            return
        self._looked = now
        self.waiting, left, highest = found
        if left < self._before or not self.waiting:
            self.moved = now
        self._last, self._before = highest, self.waiting

    def still(self, now: float) -> float:
        """For how long none has left."""
        return now - self.moved
