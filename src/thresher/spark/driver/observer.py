"""Hands the events of a pipeline to the program's observer, in a thread of its own.

A slow observer delays neither the shards nor the supervision: beyond 10 000 waiting events, new ones are dropped.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

# Called with shard, name and fields of an event.
Observer = Callable[[int, str, dict[str, Any]], None]

_MOST_EVENTS = 10_000
_CLOSE_SECONDS = 5.0


class ObserverThread:
    """Calls the observer with one event after another. Without an observer, it does nothing."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self._events: queue.Queue[tuple[int, str, dict[str, Any]] | None] = queue.Queue(_MOST_EVENTS)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if there is an observer."""
        if self._observer is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._observer,), name="engine-observer", daemon=True
            )
            self._thread.start()

    def put(self, shard: int, name: str, fields: dict[str, Any]) -> bool:
        """Queue an event; return False if it was dropped. Never waits."""
        if self._observer is not None:
            try:
                self._events.put_nowait((shard, name, fields))
            except queue.Full:
                return False
        return True

    def close(self, *, at_once: bool) -> None:
        """Give the observer a few seconds for the waiting events, none with `at_once`."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._events.put(None, timeout=_CLOSE_SECONDS)
            self._thread.join(0 if at_once else _CLOSE_SECONDS)

    def _run(self, observer: Observer) -> None:
        while (event := self._events.get()) is not None:
            try:
                observer(*event)
            except Exception:
                logger.exception("the observer failed on an event")
