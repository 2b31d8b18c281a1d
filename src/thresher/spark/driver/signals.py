"""Runs an engine as the main thing of a program.

The first SIGINT or SIGTERM stops it in good order, the second at once.

In a program that has a SparkContext already, its signals are the program's own and are left alone.
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
    """An engine, or what has one inside."""

    def request_stop(self) -> None:
        """Stop in good order. Safe in a signal handler."""

    def kill(self) -> None:
        """End at once. Safe in a signal handler."""


def run(engine: Engine) -> Snapshot:
    """Start the engine, wait for its end, and return how it ended. Raises what ended it, see `Engine.wait`."""
    with stopped_by_signals(engine):
        engine.start()
        return engine.wait()


@contextlib.contextmanager
def stopped_by_signals(engine: Stoppable) -> Iterator[None]:
    """Let signals stop the engine meanwhile. Only in the main thread, and only where they are ours to handle."""
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
