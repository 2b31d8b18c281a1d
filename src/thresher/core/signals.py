"""SIGTERM and SIGINT for what a program runs, however many runs there are at once.

1. The first signal stops every run in good order.
2. The second one abandons every run: it ends without finishing what is open.
3. From then on, and after the last run, signals do what they did before.

No signal is lost: see `interruptible`. Only the main thread handles signals: a run of another thread is stopped
otherwise. A handler that was not installed from Python is left in place, because Python could not put it back.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from thresher.core.interruptible import interruptible

_KINDS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    stop: Callable[[], None]
    abandon: Callable[[int], None] | None
    told: bool = False


class _Runs:
    """The runs of the main thread. No other thread changes them, so a signal handler needs no lock."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._before: dict[signal.Signals, Any] = {}

    def add(self, run: _Run) -> None:
        self._runs.append(run)
        for kind in _KINDS:
            handler = signal.getsignal(kind)
            # The application may have installed a handler of its own since an earlier run began.
            if handler is not None and handler != self._hear:
                self._before[kind] = handler
                signal.signal(kind, self._hear)

    def remove(self, run: _Run) -> None:
        if len(self._runs) == 1:
            # First of all: a signal that nobody heard would be lost.
            self._restore()
        if run in self._runs:
            self._runs.remove(run)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        runs, last = tuple(self._runs), all(run.told for run in self._runs)
        if last:
            self._restore()
        for run in runs:
            if not run.told:
                run.told = True
                run.stop()
            elif run.abandon is not None:
                run.abandon(128 + number)
        if last and any(run.abandon is None for run in runs):
            signal.raise_signal(number)

    def _restore(self) -> None:
        for kind, handler in self._before.items():
            if signal.getsignal(kind) == self._hear:
                signal.signal(kind, handler)


_runs = _Runs()


@contextmanager
def stopped_by_signals(stop: Callable[[], None], abandon: Callable[[int], None] | None = None) -> Iterator[None]:
    """Have SIGTERM and SIGINT end a run meanwhile.

    `stop` and `abandon` are called by a signal handler, in the middle of whatever the main thread does. `abandon` gets
    the exit status of a program that the signal ends. Without it, the second signal does what it did before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    run = _Run(stop=stop, abandon=abandon)
    with interruptible():
        try:
            _runs.add(run)
            yield
        finally:
            _runs.remove(run)
