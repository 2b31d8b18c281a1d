"""Probes the servers of a process in every role, so that a standby too knows whether it could lead.

1. Each server has a thread of its own, so that a probe that hangs does not delay the others.
2. A server that any part has reached within 15 s is not probed: a healthy leader sends no probes.
3. A server that was not reached is probed again after 5 s.
"""

import threading
from collections.abc import Callable, Mapping

from thresher.service.health import ServerHealth
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.reach import Reach

_REACHED_SECONDS, _LOST_SECONDS = 15.0, 5.0
_END_SECONDS = 1.0
Probe = Callable[[], None]


def rest_seconds(health: ServerHealth, reached_seconds: float = _REACHED_SECONDS) -> float:
    """Return for how many seconds a server need not be probed: 0 if it is not up."""
    return max(0.0, reached_seconds - health.seconds) if health.up else 0.0


class Probing:
    """The probes of one process. An error of a probe is counted and noted; its thread goes on.

    A server that answered is probed again after `reached_seconds`, one that did not after `lost_seconds`.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        reach: Reach,
        process_counts: ProcessCounts,
        *,
        reached_seconds: float = _REACHED_SECONDS,
        lost_seconds: float = _LOST_SECONDS,
    ) -> None:
        self._reach, self._process_counts = reach, process_counts
        self._reached_seconds, self._lost_seconds = reached_seconds, lost_seconds
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(server, probe), name=f"probe-{server}", daemon=True)
            for server, probe in probes.items()
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float = _END_SECONDS) -> None:
        """End the threads. A probe that hangs this long in a client is left behind, and ends with the process."""
        self._closed.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(seconds)

    def _run(self, server: str, probe: Probe) -> None:
        while not self._closed.is_set():
            if (rest := rest_seconds(self._reach.health()[server], self._reached_seconds)) > 0:
                self._closed.wait(rest)
            elif not self._reached(server, probe) or not self._reach.health()[server].up:
                # Also after a leader's check that failed: a successful probe alone does not make the server up then.
                self._closed.wait(self._lost_seconds)

    def _reached(self, server: str, probe: Probe) -> bool:
        try:
            probe()
        except Exception as error:  # noqa: BLE001 - counted by its kind, and shown with its text
            self._process_counts.count_error(error)
            self._reach.failed(server, error)
            return False
        self._reach.succeeded(server, probe=True)
        return True
