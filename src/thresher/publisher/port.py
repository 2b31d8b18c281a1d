"""The port of a backend, which gets messages that were encoded and checked."""

from collections.abc import Sequence
from typing import Any, Protocol

from thresher.outbox.message import Message


class Backend(Protocol):
    """Publishes messages in order. Safe from any thread."""

    def publish(self, messages: Sequence[Message], connection: Any) -> None:
        """Publish messages whose keys and values are bytes or None; `connection` is the caller's, or None."""

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all published messages have arrived; return whether they have."""

    def close(self) -> None:
        """Flush, and close what the backend holds. Idempotent."""
