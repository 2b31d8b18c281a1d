"""Messages that are started and wait for the application."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from thresher.queue.message import Message
from thresher.queue.problem import QueueClosed


class ReceiveBuffer:
    """Between the thread that starts messages and the application's. Safe from any thread."""

    def __init__(self, changed: threading.Condition | None = None) -> None:
        """`changed` is the condition, with its lock, that buffers share."""
        self._changed = changed or threading.Condition()
        # For the one thread that starts messages: it waits until there are no more than `enough`.
        self._room = threading.Event()
        self._enough = -1
        self._messages: deque[Message] = deque()
        self._error: BaseException | None = None
        self._closed = self._ended = False
        self._listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: Iterable[Message]) -> None:
        """Add messages. Those that come after `close` stay until they are drained."""
        with self._changed:
            self._messages.extend(messages)
            self._changed.notify_all()
        self._tell()

    def take(
        self, most: int, seconds: float | None, taken: Callable[[list[Message]], list[Message]] = lambda found: found
    ) -> list[Message]:
        """Return up to so many messages: wait for the first one, and no longer than so many seconds; None: for ever.

        `taken` is called with them before anybody can close the buffer: a close knows what the application has. It
        returns those that are still to be had. Raises `QueueClosed`, or the error that ended the consumer.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            found: list[Message] = []
            while not found:
                # What was started before an error is delivered: nobody else gets it while this process lives.
                while not self._messages or self._closed:
                    self._require_open()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return []
                    self._changed.wait(left)
                found = taken([self._messages.popleft() for _ in range(min(most, len(self._messages)))])
                if len(self._messages) <= self._enough:
                    self._enough = -1
                    self._room.set()
        return found

    def _require_open(self) -> None:
        if self._closed:
            raise QueueClosed("the consumer was closed")
        if self._error is not None:
            # The traceback would grow with every `take`.
            raise self._error.with_traceback(None)
        if self._ended:
            raise QueueClosed("the consumer has left its group")

    def await_room(self, buffered: int, seconds: float) -> bool:
        """Wait until there are no more than so many messages, or the buffer is closed; return whether that is so.

        It waits for so many seconds at most. For one thread: the one that puts.
        """
        with self._changed:
            if self._closed or len(self._messages) <= buffered:
                return True
            self._enough = buffered
            self._room.clear()
        return self._room.wait(seconds)

    def fail(self, error: BaseException) -> None:
        """Have every `take` raise the error that ended the consumer."""
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self._tell()

    def end(self) -> None:
        """Say that nothing more is put: a `take` that finds nothing raises `QueueClosed`."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._tell()

    def close(self) -> None:
        """End every `take`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._room.set()
        self._tell()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def listen(self, listener: Callable[[], None]) -> None:
        """Have a function called, from any thread, whenever `take` may return more than before."""
        with self._changed:
            self._listeners.append(listener)

    def _tell(self) -> None:
        # Without the lock: a listener may call back.
        for listener in tuple(self._listeners):
            listener()
