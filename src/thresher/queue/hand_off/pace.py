"""How many messages to start ahead of the application: about what it takes in a second, and not the backlog.

Messages that are started and wait are kept from the other consumers of the queue. A slow application gets few at a
time; a quick one gets as many as the buffer holds. Looks at no clock.
"""

_FIRST = 8
_GROWTH = 4


class Pace:
    """Plans the batches of one consumer. For one thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = min(_FIRST, capacity)
        self._handed_at: float | None = None
        self._handed = 0

    @property
    def low(self) -> int:
        """How many messages in the buffer are few enough to start more."""
        return self._target // 2

    def room(self, buffered: int, now: float) -> int:
        """Return how many messages to start now: none while half of a second's worth is left."""
        if buffered > self.low:
            return 0
        if self._handed_at is not None:
            self._learn(max(0, self._handed - buffered), now - self._handed_at)
        return max(0, self._target - buffered)

    def handed(self, buffered: int, now: float) -> None:
        """Take in that messages were started, and that so many are in the buffer now."""
        self._handed_at, self._handed = now, buffered

    def _learn(self, taken: int, seconds: float) -> None:
        """Take in how many messages the application took, in how many seconds, until there was room again."""
        self._handed_at = None
        # Only a full buffer shows what the application can take.
        if 2 * self._handed < self._target:
            return
        if seconds < 0.5:
            self._target = min(self._capacity, self._target * _GROWTH)
        elif seconds > 1.0:
            self._target = max(1, min(self._capacity, int(taken / seconds)))
