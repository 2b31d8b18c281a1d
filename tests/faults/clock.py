"""Hooks under which the clock that a worker goes by is ahead. Workers are not used again."""

import tempfile
from pathlib import Path

from thresher.core.clock import ServerClock
from thresher.delivery.crash_points import CrashPoint

AHEAD_MS = 50 * 60 * 1000
# More than what a broker takes.
FAR_AHEAD_MS = 150 * 60 * 1000
_right = ServerClock.now_ms


def reached(_point: CrashPoint, _shard: int, _rows: list[int]) -> None:
    """Be ahead."""
    _put_ahead(AHEAD_MS)


def far(_point: CrashPoint, _shard: int, _rows: list[int]) -> None:
    """Be far ahead, until the clock is set right."""
    _put_ahead(0 if right().exists() else FAR_AHEAD_MS)


def right() -> Path:
    """The file that says that the clock is right; workers have the environment of the run."""
    return Path(tempfile.gettempdir()) / "thresher-clock-is-right"


def _put_ahead(by_ms: int) -> None:
    def ahead(clock: ServerClock) -> int:
        return _right(clock) + by_ms

    ServerClock.now_ms = ahead  # type: ignore[method-assign,assignment]
