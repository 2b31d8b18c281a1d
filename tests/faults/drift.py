"""Clocks that are set wrong and right at run time: a process's own clock, and its view of the database's clock.

A file, whose path is in the environment, holds the offset of both in seconds; without the file they are right. The
process's wall clock is `time.time`; its view of the database's clock is a `ServerClock`.
"""

import faulthandler
import itertools
import os
import signal
import time
from pathlib import Path

from thresher.core.clock import ServerClock
from thresher.delivery.crash_points import CrashPoint

VARIABLE = "THRESHER_CLOCK"
HOOK = f"{__name__}:reached"
# An offset that changes at each look at the clock.
JUMPING = "jumping"
# A broker accepts timestamps that are up to an hour ahead.
OFFSETS = ("-3600", "3600", "9000", JUMPING)
# At this signal, a process that follows the file writes its threads' stacks to standard error.
STACKS_SIGNAL = signal.SIGUSR2
_jumps = itertools.cycle((3600.0, -3600.0, 9000.0, 0.0))
_time, _time_ns, _now_us = time.time, time.time_ns, ServerClock.now_us


def reached(_point: CrashPoint, _shard: int, _rows: list[int]) -> None:
    """Make a worker follow the file. Its process serves no other attempt."""
    follow()


def follow() -> None:
    """Make this process's clocks follow the file from now on. Idempotent."""
    if time.time is not _time:
        return
    faulthandler.register(STACKS_SIGNAL)

    def now_us(clock: ServerClock) -> int:
        return _now_us(clock) + int(offset_seconds() * 1e6)

    time.time = lambda: _time() + offset_seconds()
    time.time_ns = lambda: _time_ns() + int(offset_seconds() * 1e9)
    ServerClock.now_us = now_us  # type: ignore[method-assign,assignment]


def offset_seconds() -> float:
    """Return the clocks' offset now."""
    try:
        told = Path(os.environ[VARIABLE]).read_text()
    except FileNotFoundError:
        return 0.0
    return next(_jumps) if told == JUMPING else float(told)


def put_off(file: Path, offset: str) -> None:
    """Set the clocks of all processes that follow the file wrong."""
    draft = file.with_suffix(".draft")
    draft.write_text(offset)
    draft.rename(file)


def put_right(file: Path) -> None:
    """Set the clocks of all processes that follow the file right."""
    file.unlink(missing_ok=True)
