"""The tracker's clock, by which deadlines count: the broker's timestamps, and monotonic time between them.

1. A marker's timestamp, which the broker gave it, sets the clock forward. It never goes back: timestamps that go back
   are counted on from where the clock is, and what time had passed before that is not counted.
2. Monotonic time counts only up to a moment at which the broker was asked for its end, once all that was there then has
   been read. Until that, the clock stands where the markers have set it.
3. A broker that does not answer for a while was silent: that time does not count, and nobody could write a marker.
   `resumed_ms` says when a fresh mark showed that markers can be written again; it is None until then, as at the start.
4. After the first mark, timestamps cannot set the clock further ahead than monotonic time and a slack: where a broker's
   clock jumps forward, messages are due by that slack, and the time that was not counted yet, too early at most.

Wall time is never read. Milliseconds, as timestamps have; moments are monotonic, in seconds.
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
        # When the first mark was read, and what the clock said then; less what was given up since.
        self._anchor: tuple[float, float] | None = None
        # When the broker was last asked with success; up to when time was counted, or never will be; and when a marker
        # was read last.
        self._asked_at = self._counted_to = self._marker_at = float("-inf")
        self.resumed_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """What it says; 0 before the first marker."""
        return int(self._now)

    @property
    def broker_ms(self) -> int:
        """What the broker's own clock says, about: a record with a time far ahead of that would be refused."""
        return int(self._now - self._shift)

    def marker(self, timestamp_ms: int, at: float) -> int:
        """Take in the timestamp of a marker that was read at that moment, and return what the clock says."""
        before, self._timestamp_ms = self._timestamp_ms, timestamp_ms
        if before is not None and timestamp_ms < before:
            self._shift += before - timestamp_ms
            self._give_up_until(at)
        aligned = timestamp_ms + self._shift
        if self._anchor is not None:
            limit = self._by_monotonic(at) + SLACK_MS
            if aligned > limit:
                self._shift -= aligned - limit
                aligned = limit
        self._now = max(self._now, aligned)
        self._marker_at = at
        return int(self._now)

    def _by_monotonic(self, at: float) -> float:
        """Return what the clock would say by monotonic time alone."""
        since, told = self._anchor or (at, self._now)
        return told + (at - since) * 1000

    def _give_up_until(self, at: float) -> None:
        """Give up what time was not counted before this: a marker's timestamp went back.

        A later timestamp that brought it back would bring it back for the deadlines that rest on this marker too.
        """
        if self._anchor is not None:
            since, told = self._anchor
            self._anchor = (since, told - max(0.0, self._by_monotonic(at) - self._now))

    def heard(self, asked_at: float) -> None:
        """The broker has answered a question of that moment."""
        if asked_at - self._asked_at > SILENT_SECONDS:
            self.resumed_ms, self._counted_to = None, asked_at
        self._asked_at = max(self._asked_at, asked_at)

    def caught_up(self, asked_at: float) -> None:
        """All that was there when the broker was asked, at that moment, has been read."""
        if self._anchor is not None:
            counted_from = max(self._counted_to, self._marker_at + self._delay)
            self._now += max(0.0, asked_at - counted_from) * 1000
        self._counted_to = max(self._counted_to, asked_at)

    def resume(self) -> None:
        """The marker that was taken in last is a mark that was written after the start, or after the silence."""
        if self._anchor is None:
            self._anchor = (self._marker_at, self._now)
        self.resumed_ms = self.now_ms
