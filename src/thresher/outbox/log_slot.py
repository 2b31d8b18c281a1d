"""Refuses messages that are only in the WAL while no slot keeps the WAL: nobody would read them.

The writer checks the slot at most once a second, by a query in the caller's transaction that reads the server's memory
and locks nothing. The answer holds for one second, for all messages to that database. A slot that is dropped within
that second is not noticed: stop the writers before you drop a slot.
"""

import time
from collections.abc import Callable
from typing import Any

import psycopg

from thresher.core.errors import ThresherError
from thresher.db import statement
from thresher.db.postgres.cursor import OwnCursor

_LOOK_SECONDS = 1.0
# How many databases are remembered. A writer is used with few; the bound is for one that is used with many.
_REMEMBERED = 64


class NoSlot(ThresherError):  # noqa: N818
    """No slot keeps the WAL, so the message would be lost. Nothing was written, and the transaction is as it was."""

    retryable = True


class SlotWatch:
    """Checks the slot of one outbox. Threads may share it: two that check at once both query, with the same answer."""

    def __init__(self, slot: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._slot, self._clock = slot, clock
        # By database: the time until which the slot counts as existing.
        self._there: dict[tuple[str, int, str], float] = {}

    def require(self, connection: psycopg.Connection[Any]) -> None:
        """Raise `NoSlot` unless the slot existed within the last second, or exists now."""
        info = connection.info
        database = (info.host, info.port, info.dbname)
        now = self._clock()
        if now < self._there.get(database, 0.0):
            return
        found = OwnCursor(connection).execute(statement("log_slot_there"), [self._slot]).fetchone()
        if found is None or not found[0]:
            raise NoSlot(
                f"slot {self._slot!r} does not exist, or its WAL is lost: nobody would read a message that is only in "
                "the WAL. Create it with 'thresher tail slot create' and run a tail, or name another slot with slot=…"
            )
        if len(self._there) >= _REMEMBERED:
            self._there.clear()
        self._there[database] = now + _LOOK_SECONDS
