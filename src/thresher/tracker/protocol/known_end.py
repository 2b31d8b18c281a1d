"""The broker's high watermarks. Time counts up to the moment of a request, once all below its answer was read."""

from collections import deque

from thresher.tracker.protocol.clock import MarkerClock

# More than the requests during a consumer's longest open transaction.
_QUESTIONS = 64


class KnownEnd:
    """The broker's answers for one partition, for its clock."""

    def __init__(self, clock: MarkerClock, start: int) -> None:
        self._clock = clock
        # The high watermark of the last answer.
        self.high = start
        # The requests whose high watermark was not reached yet: when the broker was asked, and its answer.
        self._unmet: deque[tuple[float, int]] = deque(maxlen=_QUESTIONS)

    def answered(self, asked_at: float, high: int) -> None:
        """Process the high watermark from a request made at `asked_at`."""
        self.high = high
        self._clock.heard(asked_at)
        self._unmet.append((asked_at, high))

    def reached(self, position: int) -> None:
        """Register that everything below this offset was read."""
        while self._unmet and self._unmet[0][1] <= position:
            self._clock.caught_up(self._unmet.popleft()[0])
