"""Refuses messages while too many rows wait: a service whose relay is away fills no disk.

1. Before a message is written, the writer counts the rows that wait, no further than to the limit, by the index of
   pending rows. It does so once a second at most; what it found holds for all messages of that second.
   Room that a READ COMMITTED transaction found holds for all connections. So does a full table, if the transaction had
   written nothing, so that no row of its own was counted. Anything else holds for that connection alone.
2. The count is a query in the caller's transaction, behind a savepoint. It locks nothing, and if it fails, what was
   written before is still there and the transaction goes on.
3. The limit is no quota: many writers may pass it together within that second.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString, NamedTuple
from weakref import WeakKeyDictionary

import psycopg

from thresher.core.errors import ThresherError
from thresher.db import TableName, statement
from thresher.db.postgres.caller_connection import is_tied
from thresher.db.postgres.cursor import OwnCursor
from thresher.outbox.shape import Shape

_LOOK_SECONDS = 1.0
# Databases that one writer is used with. Bounded, in case they are many.
_REMEMBERED = 64


class OutboxFull(ThresherError):  # noqa: N818
    """Too many rows wait in the outbox. Nothing was written, and the transaction is as it was."""

    retryable = True


class _Look(NamedTuple):
    """When the rows were counted, and whether too many waited."""

    at: float
    full: bool


class Outstanding:
    """The limit of one outbox. Safe to share by threads: two that look at once both count, and agree."""

    def __init__(self, table: TableName, shape: Shape, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._most, self._clock = table, most, clock
        self._count: LiteralString = statement(f"{shape.prefix}_outstanding", table)
        # By database, what holds for all connections; and what one of them saw that may not.
        self._shared: dict[tuple[str, int, str], _Look] = {}
        self._own: WeakKeyDictionary[psycopg.Connection[Any], _Look] = WeakKeyDictionary()

    def require_room(self, connection: psycopg.Connection[Any]) -> None:
        """Raise `OutboxFull` if more rows wait than may, as far as was seen within the last second."""
        info = connection.info
        database = (info.host, info.port, info.dbname)
        now = self._clock()
        looks = (self._own.get(connection), self._shared.get(database))
        full = next((look.full for look in looks if look is not None and now - look.at < _LOOK_SECONDS), None)
        if full is None:
            full = self._look(connection, database, now)
        if full:
            raise OutboxFull(
                f"more than {self._most} messages wait in {self._table}, so no more are stored: is its relay running? "
                "Try again later, or raise Limits(outstanding=…)."
            )

    def _look(self, connection: psycopg.Connection[Any], database: tuple[str, int, str], now: float) -> bool:
        waiting, newest, wrote = self._waiting(connection)
        full = waiting > self._most
        if not holds_for_all(full=full, newest=newest, wrote=wrote):
            self._own[connection] = _Look(now, full)
            return full
        if len(self._shared) >= _REMEMBERED:
            self._shared.clear()
        self._shared[database] = _Look(now, full)
        return full

    def _waiting(self, connection: psycopg.Connection[Any]) -> tuple[int, bool, bool]:
        """Return how many rows wait, whether the newest were seen, and whether the transaction has written."""
        cursor = OwnCursor(connection)
        with _kept_usable(connection, cursor):
            (waiting,) = cursor.execute(self._count, {"most": self._most + 1}).fetchone() or (0,)
            newest, wrote = cursor.execute(statement("outstanding_seen")).fetchone() or (False, True)
        return int(waiting), newest, wrote


def holds_for_all(*, full: bool, newest: bool, wrote: bool) -> bool:
    """Whether a count tells other transactions something: of rows of its own, they see none if it rolls back."""
    return newest and not (full and wrote)


@contextmanager
def _kept_usable(connection: psycopg.Connection[Any], cursor: OwnCursor) -> Iterator[None]:
    """Undo what fails in the block alone, and leave the rest of the caller's transaction."""
    if not is_tied(connection):
        yield
        return
    cursor.execute(statement("outstanding_savepoint"))
    try:
        yield
    except psycopg.Error:
        if not connection.closed:
            cursor.execute(statement("outstanding_undo"))
        raise
    cursor.execute(statement("outstanding_release"))
