"""Worker processes on the driver's machine, which may outlive their Spark jobs by a moment.

An engine that has ended leaves none of them behind: `wait_until_gone` kills a worker that does not end by itself.
"""

import logging
import time

from thresher.spark.process import Process
from thresher.spark.signal_safe_event import SignalSafeEvent

logger = logging.getLogger(__name__)

_KILL_SECONDS = 5.0
_LOOK_SECONDS = 0.01


class LocalWorkers:
    """Processes are added in the event loop's thread, and waited for in another."""

    def __init__(self) -> None:
        # Replaced as a whole, never changed: another thread may be reading it.
        self._processes: frozenset[Process] = frozenset()

    def add(self, *processes: Process | None) -> None:
        """Remember these processes, and forget the ended ones."""
        given = {process for process in processes if process is not None}
        self._processes = frozenset(process for process in self._processes | given if process.alive)

    def wait_until_gone(self, seconds: float, kill_requested: SignalSafeEvent) -> None:
        """Return when no worker runs. Kill workers that still run after `seconds`, or on a kill request."""
        began = time.monotonic()
        while any(process.alive for process in self._processes):
            waited = time.monotonic() - began
            if waited > seconds or kill_requested.is_set():
                for process in self._processes:
                    process.kill()
            if waited > seconds + _KILL_SECONDS:
                logger.warning("workers that cannot be killed are left behind: %s", set(self._processes))
                return
            time.sleep(_LOOK_SECONDS)
