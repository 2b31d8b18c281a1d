"""Keeps messages in memory: for tests of an application."""

from collections.abc import Sequence
from typing import Any

from thresher.core.fork_safe_lock import ForkSafeLock
from thresher.outbox.message import Message


class MemoryBackend:
    """Keeps published messages, in order."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._messages: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """The messages that were published so far."""
        with self._lock:
            return list(self._messages)

    def clear(self) -> None:
        """Forget all published messages."""
        with self._lock:
            self._messages.clear()

    def publish(self, messages: Sequence[Message], connection: Any) -> None:  # noqa: ARG002 - any is welcome
        """Keep messages."""
        with self._lock:
            self._messages += messages

    def flush(self, timeout_seconds: float | None = None) -> bool:  # noqa: ARG002 - nothing is waited for
        """Return True: nothing is in flight."""
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
