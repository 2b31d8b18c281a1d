"""Refuses messages that nobody would read: those that are in the log alone, while no slot keeps the log.

The writer looks for the slot once a second at most, by a query of the server's memory in the caller's transaction,
which locks nothing. What it found holds for all messages to that database for the second. A slot that is dropped within
that second is not noticed: drop it after the writers have stopped.
"""

import time
from collections.abc import Callable
from typing import Any

import psycopg

from thresher.core.errors import ThresherError
from thresher.db import statement
from thresher.db.postgres.cursor import OwnCursor

_LOOK_SECONDS = 1.0
# Databases that one writer is used with. Bounded, in case they are many.
_REMEMBERED = 64


class NoSlot(ThresherError):  # noqa: N818
    """No slot keeps the log, so the message would be lost. Nothing was written, and the transaction is as it was."""

    retryable = True


class SlotWatch:
    """The slot of one outbox. Safe to share by threads: two that look at once both ask, and agree."""

    def __init__(self, slot: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._slot, self._clock = slot, clock
        # By database, until when the slot counts as there.
        self._there: dict[tuple[str, int, str], float] = {}

    def require(self, connection: psycopg.Connection[Any]) -> None:
        """Raise `NoSlot` unless the slot was there within the last second, or is there now."""
        info = connection.info
        database = (info.host, info.port, info.dbname)
        now = self._clock()
        if now < self._there.get(database, 0.0):
            return
        found = OwnCursor(connection).execute(statement("log_slot_there"), [self._slot]).fetchone()
        if found is None or not found[0]:
            raise NoSlot(
                f"slot {self._slot!r} is not there, or its log is lost: a message that only the log holds would be "
                "read by nobody. Make it with 'thresher tail slot create', and run a tail; or name another with slot=…"
            )
        if len(self._there) >= _REMEMBERED:
            self._there.clear()
        self._there[database] = now + _LOOK_SECONDS
