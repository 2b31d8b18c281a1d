"""Reads the throughput at regular intervals."""

from collections.abc import Callable

from thresher.service.events.event import MeterRead


class Meter:
    """Returns a reading whenever one is due. `total` returns the rows that the process has relayed so far."""

    def __init__(self, seconds: float, total: Callable[[], int], now: float) -> None:
        self._seconds, self._total = seconds, total
        self.begin(now)

    def begin(self, now: float) -> None:
        """Measure from now on, because another leadership has begun."""
        self._began = self._read = now
        self._first = self._last = self._total()

    def due(self, now: float) -> MeterRead | None:
        """Return a reading if it is time for one."""
        elapsed = now - self._read
        if elapsed < self._seconds:
            return None
        total = self._total()
        reading = MeterRead(
            relayed=total,
            rate=(total - self._last) / elapsed,
            mean_rate=(total - self._first) / (now - self._began),
            seconds=elapsed,
        )
        self._read, self._last = now, total
        return reading
