"""The thread that sends KeepAlives for all consumers of a service."""

import logging
import threading
from typing import Protocol

logger = logging.getLogger(__name__)

# How often the thread checks, as a share of the redelivery time-out: a KeepAlive due at 0.5 is sent by 0.6 of it.
_LOOK_SHARE = 0.1
_LONGEST_SECONDS = 1.0


class KeptAlive(Protocol):
    """Messages that need KeepAlives: those of one consumer."""

    def keep_alive(self) -> None:
        """Send the KeepAlives that are due."""


class KeepAlive:
    """The thread. An error of one consumer does not affect the others."""

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
        """Stop keeping these messages alive."""
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
                except Exception:  # the other consumers still need their KeepAlives
                    logger.exception("the KeepAlives of a consumer were not sent")
