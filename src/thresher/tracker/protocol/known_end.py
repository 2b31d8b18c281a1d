"""Where a partition ended when the broker was asked: time counts up to that moment, once all before it was read."""

from collections import deque

from thresher.tracker.protocol.clock import MarkerClock

# More than are asked while a consumer's transaction is open.
_QUESTIONS = 64


class KnownEnd:
    """The broker's answers for one partition, for its clock."""

    def __init__(self, clock: MarkerClock, start: int) -> None:
        self._clock = clock
        # The high watermark of the last answer.
        self.high = start
        # When the broker was asked, and what it said, where not all before that was read yet.
        self._unmet: deque[tuple[float, int]] = deque(maxlen=_QUESTIONS)

    def answered(self, asked_at: float, high: int) -> None:
        """Take in an answer, and when it was asked for."""
        self.high = high
        self._clock.heard(asked_at)
        self._unmet.append((asked_at, high))

    def reached(self, position: int) -> None:
        """Take in that all before this offset was read."""
        while self._unmet and self._unmet[0][1] <= position:
            self._clock.caught_up(self._unmet.popleft()[0])
