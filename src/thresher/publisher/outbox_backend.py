"""Stores messages in the outbox, in the caller's transaction: a relay sends them."""

from collections.abc import Sequence
from typing import Any

from thresher.core.errors import InvalidInput
from thresher.outbox.message import Message
from thresher.outbox.writer import Outbox


class ConnectionMissing(InvalidInput):
    """Messages for the outbox need the caller's connection."""


class OutboxBackend:
    """Stores in one outbox. What is promised is what `Outbox` promises."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def publish(self, messages: Sequence[Message], connection: Any) -> None:
        """Store messages. Raises `ConnectionMissing`, `NotInTransaction`, or what the database does."""
        if connection is None:
            raise ConnectionMissing(
                "the outbox is in your own database: give publish_list the connection of your transaction"
            )
        self._outbox.stash_many(connection, messages)

    def flush(self, timeout_seconds: float | None = None) -> bool:  # noqa: ARG002 - the caller's commit does it
        """Nothing is on its way: the caller's commit makes it durable."""
        return True

    def close(self) -> None:
        """There is nothing to let go of."""
