"""Runs an engine as a program's main work: the first SIGINT or SIGTERM stops it gracefully, the second kills it.

See `thresher.core.signals`. A program that already has a SparkContext keeps its own signal handlers.
"""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from thresher.core import signals
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.snapshot import Snapshot
from thresher.spark.session.session import has_context


class Stoppable(Protocol):
    """An engine, or an object that runs one."""

    def request_stop(self) -> None:
        """Stop gracefully. Safe in a signal handler."""

    def kill(self) -> None:
        """End at once. Safe in a signal handler."""


def run(engine: Engine) -> Snapshot:
    """Start the engine, wait for its end, and return its last snapshot. Raises the errors of `Engine.wait`."""
    with stopped_by_signals(engine):
        engine.start()
        return engine.wait()


@contextlib.contextmanager
def stopped_by_signals(engine: Stoppable) -> Iterator[None]:
    """Let signals stop the engine within the block. Does nothing in other threads, or if there is a SparkContext."""
    if has_context():
        yield
        return
    with signals.stopped_by_signals(engine.request_stop, lambda _status: engine.kill()):
        yield
