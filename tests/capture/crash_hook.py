"""Kills a part of a capture at a crash point, once: called in its workers, which are told how by a variable."""

import json
import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

HOOK, CRASH = "tests.capture.crash_hook:reached", "THRESHER_CAPTURE_CRASH"
_left: dict[str, int] = {}


@cache
def _told() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(os.environ[CRASH])
    return told


def reached(point: str, _shard: int, records: list[int]) -> None:
    """Kill whom the variable names at the nth batch with records that gets to its point."""
    told = _told()
    if point != told["point"] or not sum(records):
        return
    _left.setdefault(point, int(told.get("after", 1)))
    _left[point] -= 1
    done = Path(told["done"])
    if _left[point] or done.exists():
        return
    done.touch()
    if told["who"] == "nobody":
        # Whoever sees the file may stop it here.
        time.sleep(3)
        return
    os.kill({"worker": os.getpid(), "driver": int(told["driver"])}[told["who"]], signal.SIGKILL)
    # What it still did would look like what a crash leaves.
    time.sleep(60)
