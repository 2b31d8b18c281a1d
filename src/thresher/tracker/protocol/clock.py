"""The tracker's clock, by which deadlines count: the broker's timestamps, and monotonic time between them.

1. A marker's timestamp, which the broker gave it, sets the clock forward. It never goes back: timestamps that go back
   are counted on from where the clock is.
2. Monotonic time counts only up to a moment at which the broker was asked for its end, if all that was there then has
   been read. A broker that does not answer, and markers that were not read yet, leave the clock where it is.
3. Once the end was reached for the first time, timestamps cannot set the clock further ahead than monotonic time and a
   slack: a broker whose clock jumps forward expires nothing.
4. After a start, and after the broker was silent, there was a time at which nobody could write a marker. `resumed_ms`
   says when that ended.

Wall time is never read. Milliseconds, as timestamps have; `at` is monotonic, in seconds.
"""

# How far timestamps may run ahead of monotonic time, in all: brokers' clocks differ by as much, and drift.
SLACK_MS = 2_000
# The broker is asked twice a second. Without an answer for so long, it was silent.
SILENT_SECONDS = 3.0


class MarkerClock:
    """The clock of one partition of markers."""

    def __init__(self, *, use_now_after_seconds: float = 0.0) -> None:
        """Monotonic time counts from so many seconds after the last marker on."""
        self._delay = use_now_after_seconds
        self._now = 0.0
        self._timestamp_ms: int | None = None
        # What is added to timestamps, so that they go on where the clock is.
        self._shift = 0.0
        # When the end was first reached, and what the clock said then.
        self._anchor: tuple[float, float] | None = None
        # When the broker was last asked with success, and when a marker was read last.
        self._asked_at = self._marker_at = float("-inf")
        self.resumed_ms = 0

    @property
    def now_ms(self) -> int:
        """What it says; 0 before the first marker."""
        return int(self._now)

    @property
    def anchored(self) -> bool:
        """Whether the end was reached once."""
        return self._anchor is not None

    def marker(self, timestamp_ms: int, at: float) -> int:
        """Take in the timestamp of a marker that was read at that moment, and return what the clock says."""
        before, self._timestamp_ms = self._timestamp_ms, timestamp_ms
        if before is not None and timestamp_ms < before:
            self._shift += before - timestamp_ms
        aligned = timestamp_ms + self._shift
        if self._anchor is not None:
            since, told = self._anchor
            limit = told + (at - since) * 1000 + SLACK_MS
            if aligned > limit:
                self._shift -= aligned - limit
                aligned = limit
        self._now = max(self._now, aligned)
        self._marker_at = at
        return int(self._now)

    def answered(self, asked_at: float, *, at_end: bool) -> None:
        """The broker has said where its end was at that moment; `at_end`: all that is before it has been read."""
        last, self._asked_at = self._asked_at, asked_at
        if asked_at - last > SILENT_SECONDS:
            # It stands still over the silence.
            self.resumed_ms = self.now_ms
        elif at_end and self.anchored:
            counted_from = max(last, self._marker_at + self._delay)
            self._now += max(0.0, asked_at - counted_from) * 1000
        if at_end and not self.anchored and self._timestamp_ms is not None:
            self._anchor = (asked_at, self._now)
            self.resumed_ms = self.now_ms
