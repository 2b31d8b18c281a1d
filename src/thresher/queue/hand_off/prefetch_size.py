"""Decides how many messages to start ahead of the application: about as many as it takes in a second.

A started message that waits in the buffer is not available to the queue's other consumers. A slow application therefore
gets few messages at a time; a fast one gets as many as the buffer holds. Reads no clock.
"""

_FIRST = 8
_GROWTH = 4


class PrefetchSize:
    """Sizes the batches of one consumer. For one thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = min(_FIRST, capacity)
        self._handed_at: float | None = None
        self._handed = 0

    @property
    def low(self) -> int:
        """The number of buffered messages at which more are started."""
        return self._target // 2

    def room(self, buffered: int, now: float) -> int:
        """Return how many messages to start now: none while more than half of the target is buffered."""
        if buffered > self.low:
            return 0
        if self._handed_at is not None:
            self._learn(max(0, self._handed - buffered), now - self._handed_at)
        return max(0, self._target - buffered)

    def handed(self, buffered: int, now: float) -> None:
        """Register that messages were started, and that the buffer now holds `buffered` messages."""
        self._handed_at, self._handed = now, buffered

    def _learn(self, taken: int, seconds: float) -> None:
        """Adapt the target: the application took `taken` messages in `seconds`, until the buffer had room again."""
        self._handed_at = None
        # Only a filled buffer shows how fast the application is.
        if 2 * self._handed < self._target:
            return
        if seconds < 0.5:
            self._target = min(self._capacity, self._target * _GROWTH)
        elif seconds > 1.0:
            self._target = max(1, min(self._capacity, int(taken / seconds)))
