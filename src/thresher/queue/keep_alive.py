"""One thread that keeps the messages of all consumers of a service alive."""

import logging
import threading
from typing import Protocol

logger = logging.getLogger(__name__)

# Of the redelivery time-out: KeepAlives are due at half of it, so they come at six tenths of it at the latest.
_LOOK_SHARE = 0.1
_LONGEST_SECONDS = 1.0


class KeptAlive(Protocol):
    """Messages that need KeepAlives."""

    def keep_alive(self) -> None:
        """Send those that are due."""


class KeepAlive:
    """The thread. A failure of one consumer does not touch the others."""

    def __init__(self, redelivery_seconds: float) -> None:
        self._every = min(_LONGEST_SECONDS, redelivery_seconds * _LOOK_SHARE)
        self._lock = threading.Lock()
        self._kept: list[KeptAlive] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, kept: KeptAlive) -> None:
        """Keep these messages alive from now on."""
        with self._lock:
            self._kept.append(kept)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="thresher-queue-keep-alive", daemon=True)
                self._thread.start()

    def remove(self, kept: KeptAlive) -> None:
        """Let these messages be."""
        with self._lock:
            if kept in self._kept:
                self._kept.remove(kept)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            with self._lock:
                kept = list(self._kept)
            for each in kept:
                try:
                    each.keep_alive()
                except Exception:  # whatever it is, the others need theirs
                    logger.exception("the KeepAlives of a consumer were not sent")
