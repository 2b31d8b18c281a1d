"""SIGTERM and SIGINT for the runs of a program, such as relays, however many run at once.

1. The first signal stops every run gracefully.
2. The second signal abandons every run: it ends without finishing its open batch.
3. After that, and after the last run, signals have their earlier effect.

No signal is lost: see `interruptible`. Only the main thread handles signals, so runs of other threads get none. A
handler that was not installed from Python is left in place, because Python could not restore it.
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
    stop_called: bool = False


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
            # Restored before the run is removed: without a run, the handler would lose a signal.
            self._restore()
        if run in self._runs:
            self._runs.remove(run)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        runs, last = tuple(self._runs), all(run.stop_called for run in self._runs)
        if last:
            self._restore()
        for run in runs:
            if not run.stop_called:
                run.stop_called = True
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
    """Let SIGTERM and SIGINT end a run within the block.

    A signal handler calls `stop` and `abandon`, so they may interrupt the main thread anywhere. `abandon` gets the exit
    status of a program that the signal ends. Without `abandon`, the second signal has its earlier effect.
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
