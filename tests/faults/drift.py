"""Clocks that go wrong at run time, and right again: of the process that is told to follow, and of the database.

A file (its place is in the environment) says by how many seconds both are off; without it they are right. A machine's
own wall clock is what `time.time` tells; what a worker takes for the database's is a `ServerClock`.
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
# By something else each time that somebody looks.
JUMPING = "jumping"
# An hour is what a broker just bears, of a time that is ahead.
OFFSETS = ("-3600", "3600", "9000", JUMPING)
# At which whoever follows writes the stacks of its threads to its standard error.
STACKS_SIGNAL = signal.SIGUSR2
_jumps = itertools.cycle((3600.0, -3600.0, 9000.0, 0.0))
_time, _time_ns, _now_us = time.time, time.time_ns, ServerClock.now_us


def reached(_point: CrashPoint, _shard: int, _rows: list[int]) -> None:
    """Follow, in a worker. Workers are not used again."""
    follow()


def follow() -> None:
    """Go by the file from now on. Harmless the second time."""
    if time.time is not _time:
        return
    faulthandler.register(STACKS_SIGNAL)

    def now_us(clock: ServerClock) -> int:
        return _now_us(clock) + int(offset_seconds() * 1e6)

    time.time = lambda: _time() + offset_seconds()
    time.time_ns = lambda: _time_ns() + int(offset_seconds() * 1e9)
    ServerClock.now_us = now_us  # type: ignore[method-assign,assignment]


def offset_seconds() -> float:
    """Return by how much clocks are off now."""
    try:
        told = Path(os.environ[VARIABLE]).read_text()
    except FileNotFoundError:
        return 0.0
    return next(_jumps) if told == JUMPING else float(told)


def put_off(file: Path, offset: str) -> None:
    """Have whoever follows be off."""
    draft = file.with_suffix(".draft")
    draft.write_text(offset)
    draft.rename(file)


def put_right(file: Path) -> None:
    """Have whoever follows be right."""
    file.unlink(missing_ok=True)
