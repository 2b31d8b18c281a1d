"""Whether the load moves on: rows leave the outbox, or offsets pass messages."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

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


class Movement:
    """When something was last seen to move. A context manager.

    A thread looks: servers that were paused answer late, and the faults that end the pause must not wait for that.
    """

    def __init__(self, moved: float = 0.0) -> None:
        self.moved = moved
        # The longest time in which something waited and nothing moved.
        self.longest = 0.0
        self.waiting = 0
        self._looked = 0.0
        self._pool = ThreadPoolExecutor(1)
        self._looking: Future[Look | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def look(self, now: float, look: Callable[[], Look | None]) -> None:
        """Look, now and then, and take in what the last look has found."""
        if self._looking is not None:
            if not self._looking.done():
                return
            found = self._looking.result()
            self._looking = None
            if found is not None:
                self._looked = now
                self.waiting = found.waiting
                self.longest = max(self.longest, self.still(now) if found.waiting else 0.0)
                if found.moved or not found.waiting:
                    self.moved = now
        if now - self._looked >= _LOOK_SECONDS:
            self._looking = self._pool.submit(look)

    def still(self, now: float) -> float:
        """For how long nothing has moved."""
        return now - self.moved
