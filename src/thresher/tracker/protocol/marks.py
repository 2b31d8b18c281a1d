"""A tracker's own marks: Ends of no message, by which it knows that everything before them was read."""

import random
from collections.abc import Callable

from thresher.queue.wire.marker import SYNTHETIC
from thresher.tracker.protocol.started import Id

# A record that is not read back for so long, though all was read, is lost: a leader was elected that did not have it.
LOST_SECONDS = 30.0


class Marks:
    """The marks of one partition: one at a time is on its way. For one thread."""

    def __init__(self, draw: Callable[[], int] = lambda: random.getrandbits(62)) -> None:
        """`draw` returns a number that no other mark has."""
        self._draw = draw
        # The one that was written and not read back: its number, and what the clock said before it was written.
        self._written: tuple[int, int] | None = None
        self._written_at = 0.0
        # What the clock said before the last one was written that was read back; None before the first.
        self.confirmed_ms: int | None = None
        # The number of one that was written to show that markers can be written again.
        self._fresh: int | None = None

    @property
    def on_its_way(self) -> bool:
        """Whether one was written and not read back."""
        return self._written is not None

    def new(self, now_ms: int, *, fresh: bool = False) -> tuple[int, int]:
        """Return one to write: its number, and what the clock says. `fresh`: markers may not have been writable."""
        number = self._draw()
        self._fresh = number if fresh else self._fresh
        return number, now_ms

    def written(self, mark: tuple[int, int] | None, at: float) -> None:
        """Take in that one is committed, if there was one."""
        if mark is not None:
            self._written, self._written_at = mark, at

    def give_up(self, at: float) -> None:
        """Wait no longer for one that was not read back for long, though all was read: the broker has lost it."""
        if self._written is not None and at - self._written_at > LOST_SECONDS:
            self._written = None

    def read_back(self, id_: Id) -> bool:
        """Take in an End of this id, and return whether it is the mark that was written last."""
        if self._written is None or id_ != (SYNTHETIC, self._written[0]):
            return False
        self.confirmed_ms, self._written = self._written[1], None
        return True

    def is_fresh(self, id_: Id) -> bool:
        """Whether the mark of this id shows that markers can be written again."""
        return self._fresh is not None and id_ == (SYNTHETIC, self._fresh)
