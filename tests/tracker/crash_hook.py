"""Kills a part of a tracker at a crash point, once. Called in its workers, with an order in an environment variable."""

import json
import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

from tests.processes import is_java, parent

HOOK, CRASH = "tests.tracker.crash_hook:reached", "THRESHER_TRACKER_CRASH"
_left: dict[str, int] = {}


@cache
def _told() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(os.environ[CRASH])
    return told


def reached(point: str, _shard: int, messages: list[int]) -> None:
    """Kill the process that the variable names, when the nth transaction with messages reaches its crash point."""
    told = _told()
    if point != told["point"] or not messages:
        return
    _left.setdefault(point, int(told.get("after", 1)))
    _left[point] -= 1
    done = Path(told["done"])
    if _left[point] or done.exists():
        return
    done.touch()
    me = os.getpid()
    victim = {"worker": me, "jvm": _java_of(me), "driver": int(told["driver"])}[told["who"]]
    os.kill(victim, signal.SIGKILL)
    # The worker does nothing more: its further work would not follow a crash of the victim.
    time.sleep(60)


def _java_of(pid: int) -> int:
    while not is_java(pid):
        pid = parent(pid)
    return pid
