"""Keeps a child that a function forks from acting as the task.

A forked child gets the default signal handlers back and closes its copy of the line. If the main thread forked it,
the kernel kills it when the task's process ends.
"""

import os
import signal
import threading

from thresher.spark.process import signal_at_parent_death
from thresher.spark.worker.line import Line


class ForkGuard:
    """Handlers around `os.fork`, in place from `install` until the process ends."""

    def __init__(self, line: Line, *, exit_status: int) -> None:
        self._line = line
        self._exit_status = exit_status
        self._forked_by_main, self._parent = True, 0

    def install(self) -> None:
        """Register the handlers. Call it once."""
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)

    def _before_fork(self) -> None:
        self._forked_by_main = threading.current_thread() is threading.main_thread()
        self._parent = os.getpid()

    def _in_child(self) -> None:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if self._forked_by_main:
            # The kernel reports the end of the forking thread. Only the main thread's end means the end of the process.
            signal_at_parent_death(signal.SIGKILL)
            if os.getppid() != self._parent:
                os._exit(self._exit_status)  # the parent died before the kernel could report it
        self._line.close_in_child()
