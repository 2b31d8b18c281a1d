"""The messages that are started and wait for the application."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from thresher.queue.message import Message
from thresher.queue.problem import QueueClosed


class ReceiveBuffer:
    """The buffer between the thread that starts messages and the application's threads. Safe from any thread."""

    def __init__(self, changed: threading.Condition | None = None) -> None:
        """`changed` is a condition, with its lock, that several buffers share."""
        self._changed = changed or threading.Condition()
        # For the thread that starts messages: it waits until at most `_enough` messages are left.
        self._room = threading.Event()
        self._enough = -1
        self._messages: deque[Message] = deque()
        self._error: BaseException | None = None
        self._closed = self._ended = False
        self._listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: Iterable[Message]) -> None:
        """Add messages. Messages added after `close` are never taken: the consumer gives them back."""
        with self._changed:
            self._messages.extend(messages)
            self._changed.notify_all()
        self._tell()

    def take(
        self, most: int, seconds: float | None, taken: Callable[[list[Message]], list[Message]] = lambda found: found
    ) -> list[Message]:
        """Return up to `most` messages: wait up to `seconds` for the first one, or indefinitely if that is None.

        `taken` gets the messages before another thread can close the buffer, so that a close knows which messages the
        application has. It returns those that may still be delivered. Raises `QueueClosed`, or the error that ended the
        consumer.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            found: list[Message] = []
            while not found:
                # Messages started before an error are still delivered: no other consumer gets them while this process
                # lives.
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
            # Raised with its own traceback, the error would grow with every `take`.
            raise self._error.with_traceback(None)
        if self._ended:
            raise QueueClosed("the consumer has left its group")

    def await_room(self, buffered: int, seconds: float) -> bool:
        """Wait until at most `buffered` messages are left or the buffer is closed. Return False on timeout.

        Only for the thread that puts.
        """
        with self._changed:
            if self._closed or len(self._messages) <= buffered:
                return True
            self._enough = buffered
            self._room.clear()
        return self._room.wait(seconds)

    def fail(self, error: BaseException) -> None:
        """Make every `take` raise the error that ended the consumer, once the buffer is empty."""
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self._tell()

    def end(self) -> None:
        """Declare that no more messages are put: a `take` that finds the buffer empty raises `QueueClosed`."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._tell()

    def close(self) -> None:
        """End every `take`, even if messages are left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._room.set()
        self._tell()

    @property
    def closed(self) -> bool:
        """Whether the buffer was closed."""
        return self._closed

    def listen(self, listener: Callable[[], None]) -> None:
        """Register a function to be called, from any thread, whenever `take` may return more than before."""
        with self._changed:
            self._listeners.append(listener)

    def _tell(self) -> None:
        # Without the lock, because a listener may call this buffer.
        for listener in tuple(self._listeners):
            listener()
