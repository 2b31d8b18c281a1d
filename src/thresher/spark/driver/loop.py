"""The driver's one thread that changes anything: sockets, calls from other threads, and time, one after another.

Everything else hands it work with `post`, which is safe from any thread and from a signal handler. The time that is
acted on was read before the last look at what has arrived: a driver that was paused, wherever that was, finds the beats
it missed before it misses them.
"""

import collections
import contextlib
import logging
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any

from thresher.spark.waker import Waker

logger = logging.getLogger(__name__)

_LONGEST_SECONDS = 3600.0


class Loop:
    """Runs until `finish`. `on_time` is called after every round and returns when it wants to be called again."""

    def __init__(
        self, name: str, on_time: Callable[[float], float | None], on_broken: Callable[[BaseException], None]
    ) -> None:
        self._on_time = on_time
        # Called when something raised: a bug, after which nothing is looked after any more.
        self._on_broken = on_broken
        self._posts: collections.deque[Callable[[], None]] = collections.deque()
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self._selector.register(self._waker, selectors.EVENT_READ, lambda _events: self._waker.drain())
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the end; return whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def post(self, work: Callable[[], None]) -> None:
        """Have work done in the loop's thread, in the order of posting."""
        self._posts.append(work)
        self._waker.wake()

    def finish(self) -> None:
        """End after this round. For the loop's own thread."""
        self._finished = True

    def watch(self, source: Any, events: int, on_ready: Callable[[int], object]) -> None:
        """Call back when the source is ready; called again it changes the events. For the loop's own thread."""
        try:
            self._selector.modify(source, events, on_ready)
        except KeyError:
            self._selector.register(source, events, on_ready)

    def forget(self, source: Any) -> None:
        """Stop watching. For the loop's own thread."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def _look(self, longest: float) -> None:
        for key, events in self._selector.select(longest):
            key.data(events)

    def _run(self) -> None:
        try:
            due: float | None = 0.0
            while not self._finished:
                longest = _LONGEST_SECONDS if due is None else due - time.monotonic()
                self._look(max(0.0, min(longest, _LONGEST_SECONDS)))
                # A pause ends the wait above with nothing found, although there is: so once more, after the time.
                now = time.monotonic()
                self._look(0.0)
                while self._posts:
                    self._posts.popleft()()
                due = self._on_time(now)
        except BaseException as error:
            logger.exception("the engine's loop broke")
            self._on_broken(error)
        finally:
            self._selector.close()
