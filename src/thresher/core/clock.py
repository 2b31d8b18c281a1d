"""A server's clock, extrapolated by monotonic time: this machine's wall clock may be wrong, and may jump."""

import time
from collections.abc import Callable


class ServerClock:
    """The time that a server reported once, plus the monotonic time since then. Never reads wall time."""

    def __init__(self, epoch_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset_seconds = epoch_seconds - monotonic()

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return self.now_us() // 1000

    def now_us(self) -> int:
        """Return the microseconds since 1970."""
        return int((self._offset_seconds + self._monotonic()) * 1_000_000)
