"""Reads how much was relayed, at even times."""

from collections.abc import Callable

from thresher.service.events.event import MeterRead


class Meter:
    """Gives a reading whenever one is due. `total` is what was relayed so far, by the process as a whole."""

    def __init__(self, seconds: float, total: Callable[[], int], now: float) -> None:
        self._seconds, self._total = seconds, total
        self.begin(now)

    def begin(self, now: float) -> None:
        """Count from now on: another leadership has begun."""
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
