"""Hooks that set a worker's clock ahead. The clock stays wrong in that process: each attempt has a new one."""

import tempfile
from pathlib import Path

from thresher.core.clock import ServerClock
from thresher.delivery.crash_points import CrashPoint

AHEAD_MS = 50 * 60 * 1000
# More than the one hour by which a broker lets a timestamp be ahead.
FAR_AHEAD_MS = 150 * 60 * 1000
_right = ServerClock.now_ms


def reached(_point: CrashPoint, _shard: int, _rows: list[int]) -> None:
    """Set the clock ahead."""
    _put_ahead(AHEAD_MS)


def far(_point: CrashPoint, _shard: int, _rows: list[int]) -> None:
    """Set the clock far ahead, until the file `right()` exists."""
    _put_ahead(0 if right().exists() else FAR_AHEAD_MS)


def right() -> Path:
    """The file whose existence sets the clock right. Workers find it because they share the run's environment."""
    return Path(tempfile.gettempdir()) / "thresher-clock-is-right"


def _put_ahead(by_ms: int) -> None:
    def ahead(clock: ServerClock) -> int:
        return _right(clock) + by_ms

    ServerClock.now_ms = ahead  # type: ignore[method-assign,assignment]
