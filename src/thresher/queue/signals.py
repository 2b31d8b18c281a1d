"""SIGTERM and SIGINT for the runs of a program, however many there are at once.

1. The first signal stops every run: it takes no further message, and waits for its handlers.
2. The second one waits for no handler: the messages that handlers have are given back, and `run` ends by `SystemExit`.
3. From then on, and after the last run, signals do what they did before.

Only the main thread handles signals: a run of another thread ends by `close`. A handler that was not installed from
Python is left in place, because Python could not put it back.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

_KINDS = (signal.SIGTERM, signal.SIGINT)


class Stoppable(Protocol):
    """A run. Both calls are made by a signal handler, in the middle of whatever the main thread does."""

    def stop(self) -> None:
        """Take no further message, and wait for the handlers."""

    def abandon(self, status: int) -> None:
        """Wait for no handler, and end the program with this exit status."""


class _Runs:
    """The runs of the main thread. No other thread changes them, so a signal handler needs no lock."""

    def __init__(self) -> None:
        # For each run, whether it was told to stop.
        self._told: dict[Stoppable, bool] = {}
        self._before: dict[signal.Signals, Any] = {}

    def add(self, run: Stoppable) -> None:
        self._told[run] = False
        for kind in _KINDS:
            handler = signal.getsignal(kind)
            # The application may have installed a handler of its own since an earlier run began.
            if handler is not None and handler != self._hear:
                self._before[kind] = handler
                signal.signal(kind, self._hear)

    def remove(self, run: Stoppable) -> None:
        if len(self._told) == 1:
            # First of all: a signal that nobody heard would be lost.
            self._restore()
        self._told.pop(run, None)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if all(self._told.values()):
            self._restore()
        for run, told in tuple(self._told.items()):
            self._told[run] = True
            if told:
                run.abandon(128 + number)
            else:
                run.stop()

    def _restore(self) -> None:
        for kind, handler in self._before.items():
            if signal.getsignal(kind) == self._hear:
                signal.signal(kind, handler)


_runs = _Runs()


@contextmanager
def stopped_by_signals(run: Stoppable) -> Iterator[None]:
    """Have SIGTERM and SIGINT end a run meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        _runs.add(run)
        yield
    finally:
        _runs.remove(run)
