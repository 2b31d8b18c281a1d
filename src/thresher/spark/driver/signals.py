"""Runs an engine as a program's main work: the first SIGINT or SIGTERM stops it in good order, the second kills it.

A program that already has a SparkContext keeps its own signal handlers.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Protocol

from thresher.spark.driver.engine import Engine
from thresher.spark.driver.snapshot import Snapshot
from thresher.spark.session.session import has_context

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stoppable(Protocol):
    """An engine, or an object that runs one."""

    def request_stop(self) -> None:
        """Stop in good order. Safe in a signal handler."""

    def kill(self) -> None:
        """End at once. Safe in a signal handler."""


def run(engine: Engine) -> Snapshot:
    """Start the engine, wait for its end, and return its last snapshot. Raises the errors of `Engine.wait`."""
    with stopped_by_signals(engine):
        engine.start()
        return engine.wait()


@contextlib.contextmanager
def stopped_by_signals(engine: Stoppable) -> Iterator[None]:
    """Let signals stop the engine meanwhile. Does nothing outside the main thread or beside a SparkContext."""
    if has_context() or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            engine.kill()
        else:
            asked = True
            engine.request_stop()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
