"""Stores messages in the outbox, in the caller's transaction: a relay sends them."""

from collections.abc import Sequence
from typing import Any

from thresher.core.errors import InvalidInput
from thresher.outbox.message import Message
from thresher.outbox.writer import Outbox


class ConnectionMissing(InvalidInput):
    """The outbox backend needs the caller's connection."""


class OutboxBackend:
    """Stores messages in one outbox, with the guarantees of `Outbox`."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def publish(self, messages: Sequence[Message], connection: Any) -> None:
        """Store messages. Raises `ConnectionMissing`, `NotInTransaction`, or the driver's errors."""
        if connection is None:
            raise ConnectionMissing(
                "the outbox is in your own database: give publish_list the connection of your transaction"
            )
        self._outbox.stash_many(connection, messages)

    def flush(self, timeout_seconds: float | None = None) -> bool:  # noqa: ARG002 - the caller's commit does it
        """Return True: nothing is in flight. The caller's commit makes the messages durable."""
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
