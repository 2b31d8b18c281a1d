"""The driver's event loop: the one thread that changes the engine's state.

It serves sockets, calls that other threads posted, and deadlines, one after another. `post` is safe from any thread
and from a signal handler. The loop reads the clock, then reads the sockets once more, then acts on deadlines. A driver
that was paused therefore receives the heartbeats of the pause before it could count them as missed.
"""

import collections
import contextlib
import logging
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any

from thresher.spark.wakeup_pipe import WakeupPipe

logger = logging.getLogger(__name__)

_LONGEST_SECONDS = 3600.0


class EventLoop:
    """Runs until `finish`. `on_time` is called after every round, and returns when it wants to be called again."""

    def __init__(
        self, name: str, on_time: Callable[[float], float | None], on_broken: Callable[[BaseException], None]
    ) -> None:
        self._on_time = on_time
        # Called when a callback raised, which is a bug: the loop has ended.
        self._on_broken = on_broken
        self._posts: collections.deque[Callable[[], None]] = collections.deque()
        self._selector = selectors.DefaultSelector()
        self._wakeup = WakeupPipe()
        self._selector.register(self._wakeup, selectors.EVENT_READ, lambda _events: self._wakeup.drain())
        self._finished = False
        # When `silent_seconds` posted the call that has not run yet.
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the thread's end; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def post(self, call: Callable[[], None]) -> None:
        """Run a call in the loop's thread. Calls run in the order of posting."""
        self._posts.append(call)
        self._wakeup.wake()

    def silent_seconds(self) -> float:
        """Return for how long a posted call has waited for the loop, and post one if none waits. Never waits."""
        now, since = time.monotonic(), self._asked_at
        if since is None:
            self._asked_at = since = now
            self.post(self._answer)
        return now - since

    def finish(self) -> None:
        """End after this round. Only for the loop's own thread."""
        self._finished = True

    def watch(self, source: Any, events: int, on_ready: Callable[[int], object]) -> None:
        """Call back when the source is ready. A second call changes the events. Only for the loop's own thread."""
        try:
            self._selector.modify(source, events, on_ready)
        except KeyError:
            self._selector.register(source, events, on_ready)

    def unwatch(self, source: Any) -> None:
        """Stop watching the source. Only for the loop's own thread."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def _answer(self) -> None:
        self._asked_at = None

    def _select(self, longest: float) -> None:
        for key, events in self._selector.select(longest):
            key.data(events)

    def _run(self) -> None:
        try:
            due: float | None = 0.0
            while not self._finished:
                longest = _LONGEST_SECONDS if due is None else due - time.monotonic()
                self._select(max(0.0, min(longest, _LONGEST_SECONDS)))
                # After a pause of the process, the wait above may time out although frames have arrived: select again.
                now = time.monotonic()
                self._select(0.0)
                while self._posts:
                    self._posts.popleft()()
                due = self._on_time(now)
        except BaseException as error:
            logger.exception("the engine's loop broke")
            self._on_broken(error)
        finally:
            self._selector.close()
