"""The tracker's clock, by which deadlines pass: the broker's timestamps, and monotonic time between them.

1. A marker's timestamp, set by the broker, moves the clock forward. The clock never goes back. If a timestamp is lower
   than the one before, it and all later ones are shifted to continue at the clock's time. The time before it that was
   not counted yet is given up.
2. Monotonic time counts only up to the last moment at which the broker was asked for its high watermark. It counts once
   everything below that watermark was read. Until then the clock stays where the markers set it.
3. If the broker does not answer for `SILENT_SECONDS`, that time does not count: no consumer could write a marker.
   `resumed_ms` is the time at which a fresh mark showed that markers can be written again. It is None until then, and
   after the start.
4. After the first mark, timestamps can move the clock at most `SLACK_MS` ahead of monotonic time. If a broker's clock
   jumps forward, messages are due too early by at most this slack plus the time that was not counted yet.

The wall clock is never read. Clock values are in milliseconds, like timestamps; moments are monotonic, in seconds.
"""

# How far timestamps may run ahead of monotonic time in total: brokers' clocks differ and drift by about as much.
SLACK_MS = 2_000
# The broker is asked twice a second. After this long without an answer, it counts as silent.
SILENT_SECONDS = 3.0


class MarkerClock:
    """The clock of one marker partition."""

    def __init__(self, *, use_now_after_seconds: float = 0.0) -> None:
        """Monotonic time counts only from `use_now_after_seconds` after the last marker."""
        self._delay = use_now_after_seconds
        self._now = 0.0
        self._timestamp_ms: int | None = None
        # The offset added to timestamps, so that they continue at the clock's time.
        self._shift = 0.0
        # The moment when the first mark was read, and the clock's value then, minus the time given up since.
        self._anchor: tuple[float, float] | None = None
        # When the broker was last asked successfully; up to when time was counted or given up; and when the last marker
        # was read.
        self._asked_at = self._counted_to = self._marker_at = float("-inf")
        self.resumed_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """The current time; 0 before the first marker."""
        return int(self._now)

    @property
    def broker_ms(self) -> int:
        """The approximate time of the broker's own clock. A broker may refuse a timestamp far ahead of it."""
        return int(self._now - self._shift)

    def marker(self, timestamp_ms: int, at: float) -> int:
        """Process the timestamp of a marker that was read at `at`, and return the current time."""
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
        """Return the time by monotonic time alone."""
        since, told = self._anchor or (at, self._now)
        return told + (at - since) * 1000

    def _give_up_until(self, at: float) -> None:
        """Give up the time that was not counted before `at`, because a marker's timestamp went back.

        If a later timestamp could add that time, it would also shorten the deadlines that were set at this marker.
        """
        if self._anchor is not None:
            since, told = self._anchor
            self._anchor = (since, told - max(0.0, self._by_monotonic(at) - self._now))

    def heard(self, asked_at: float) -> None:
        """Register that the broker has answered a request made at `asked_at`."""
        if asked_at - self._asked_at > SILENT_SECONDS:
            self.resumed_ms, self._counted_to = None, asked_at
        self._asked_at = max(self._asked_at, asked_at)

    def caught_up(self, asked_at: float) -> None:
        """Register that everything up to the high watermark of `asked_at` was read."""
        if self._anchor is not None:
            counted_from = max(self._counted_to, self._marker_at + self._delay)
            self._now += max(0.0, asked_at - counted_from) * 1000
        self._counted_to = max(self._counted_to, asked_at)

    def resume(self) -> None:
        """Register that the last marker is a mark, written after the start or after the broker was silent."""
        if self._anchor is None:
            self._anchor = (self._marker_at, self._now)
        self.resumed_ms = self.now_ms
