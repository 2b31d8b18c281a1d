"""Kills a part of a capture at a crash point, once. Called in its workers, with an order in an environment variable."""

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
    """Kill the process that the variable names, when the nth batch with records reaches its crash point."""
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
        # The test sees the file, and has 3 s to stop this process here.
        time.sleep(3)
        return
    os.kill({"worker": os.getpid(), "driver": int(told["driver"])}[told["who"]], signal.SIGKILL)
    # The worker does nothing more: its further work would not follow a crash of the victim.
    time.sleep(60)
