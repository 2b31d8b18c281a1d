"""Calls event handlers, in order, in a thread of its own. A handler that fails or hangs does not affect the service."""

import logging
import queue
import threading
from collections.abc import Callable

from thresher.service.events.event import Event, MeterRead

logger = logging.getLogger(__name__)

Handler = Callable[[Event], object]
# The most events that wait for slow handlers. Beyond it, `MeterRead` events are dropped.
_MOST_WAITING = 1_000


class Announcer:
    """Calls every handler with every event that is announced after the handler was added."""

    def __init__(self, thread: str) -> None:
        self._handlers: tuple[Handler, ...] = ()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=thread, daemon=True)

    def add(self, handler: Handler) -> None:
        """Add a handler, which is called from now on."""
        with self._lock:
            self._handlers = (*self._handlers, handler)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def announce(self, event: Event) -> None:
        """Queue an event for all handlers, and return at once."""
        if not isinstance(event, MeterRead) or self._events.qsize() < _MOST_WAITING:
            self._events.put(event)

    def close(self, seconds: float) -> None:
        """End after the queued events, but wait at most `seconds` for them."""
        self._events.put(None)
        if self.thread is not threading.current_thread():
            self.thread.join(seconds)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            for handler in self._handlers:
                try:
                    handler(event)
                except Exception:
                    logger.exception("an event handler failed on %s", type(event).__name__)
