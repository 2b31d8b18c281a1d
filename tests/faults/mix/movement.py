"""Whether the load makes progress: rows leave the outbox, or offsets pass messages."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

_LOOK_SECONDS = 1.0
# Returns the number of rows, the number of rows up to an id, and the highest id; None without an answer.
Counted = Callable[[int], tuple[int, int, int] | None]


@dataclass(frozen=True, slots=True)
class Look:
    """How many rows or messages wait, and whether any has left since the last look."""

    waiting: int
    moved: bool


class Leaving:
    """Looks at an outbox to which writers keep adding rows."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._last = self._before = 0

    def look(self) -> Look | None:
        """Count the rows; None without an answer."""
        if (found := self._counted(self._last)) is None:
            return None
        waiting, left, highest = found
        moved = left < self._before
        self._last, self._before = highest, waiting
        return Look(waiting, moved)


class Movement:
    """The time of the last progress. A context manager.

    A thread looks: paused servers answer late, and the actions that end the pause must not wait for them.
    """

    def __init__(self, moved: float = 0.0) -> None:
        self.moved = moved
        # The longest time with pending work and without progress.
        self.longest = 0.0
        self.waiting = 0
        self._looked = 0.0
        self._pool = ThreadPoolExecutor(1)
        # The look that is under way.
        self.looking: Future[Look | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def look(self, now: float, look: Callable[[], Look | None]) -> None:
        """Use the result of the last look, and start another one about once a second."""
        if self.looking is not None:
            if not self.looking.done():
                return
            found = self.looking.result()
            self.looking = None
            if found is not None:
                self._looked = now
                self.waiting = found.waiting
                self.longest = max(self.longest, self.still(now) if found.waiting else 0.0)
                if found.moved or not found.waiting:
                    self.moved = now
        if now - self._looked >= _LOOK_SECONDS:
            self.looking = self._pool.submit(look)

    def still(self, now: float) -> float:
        """The time since the last progress."""
        return now - self.moved
