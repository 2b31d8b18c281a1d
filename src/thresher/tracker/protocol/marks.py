"""The tracker's own marks: Ends without a message.

A mark that was read back proves that everything before it was read.
"""

import random
from collections.abc import Callable

from thresher.queue.wire.marker import SYNTHETIC
from thresher.tracker.protocol.started import Id

# A record that does not come back in this time, though everything was read, is lost: a new leader did not have it.
LOST_SECONDS = 30.0


class Marks:
    """The marks of one partition, at most one in flight. For one thread."""

    def __init__(self, draw: Callable[[], int] = lambda: random.getrandbits(62)) -> None:
        """`draw` returns a random number that no other mark has."""
        self._draw = draw
        # The mark in flight: its number, and the clock's time before it was written.
        self._written: tuple[int, int] | None = None
        self._written_at = 0.0
        # The clock's time before the last mark that was read back was written; None before the first.
        self.confirmed_ms: int | None = None
        # The number of the mark that shows that markers can be written again.
        self._fresh: int | None = None

    @property
    def on_its_way(self) -> bool:
        """Whether a mark is in flight: written and not read back."""
        return self._written is not None

    def new(self, now_ms: int, *, fresh: bool = False) -> tuple[int, int]:
        """Return a new mark: its number, and the clock's time.

        With `fresh`, it has to show that markers can be written again.
        """
        number = self._draw()
        self._fresh = number if fresh else self._fresh
        return number, now_ms

    def written(self, mark: tuple[int, int] | None, at: float) -> None:
        """Register that a mark is committed, if the transaction had one."""
        if mark is not None:
            self._written, self._written_at = mark, at

    def give_up(self, at: float) -> None:
        """Stop waiting for a mark not read back in `LOST_SECONDS`, though all was read: the broker has lost it."""
        if self._written is not None and at - self._written_at > LOST_SECONDS:
            self._written = None

    def read_back(self, id_: Id) -> bool:
        """Process an End with this id, and return whether it is the mark in flight."""
        if self._written is None or id_ != (SYNTHETIC, self._written[0]):
            return False
        self.confirmed_ms, self._written = self._written[1], None
        return True

    def is_fresh(self, id_: Id) -> bool:
        """Whether the mark with this id shows that markers can be written again."""
        return self._fresh is not None and id_ == (SYNTHETIC, self._fresh)
