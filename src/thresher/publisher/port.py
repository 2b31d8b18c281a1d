"""What a backend does with messages that were encoded and checked."""

from collections.abc import Sequence
from typing import Any, Protocol

from thresher.outbox.message import Message


class Backend(Protocol):
    """Publishes messages, in their order. Safe from any thread."""

    def publish(self, messages: Sequence[Message], connection: Any) -> None:
        """Publish messages whose keys and values are bytes or None; `connection` is the caller's, or None."""

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all that was published is where it should be, and return whether that is so."""

    def close(self) -> None:
        """Let go of what it holds, after a flush. Harmless when repeated."""
