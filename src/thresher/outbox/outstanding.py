"""Refuses messages while too many rows wait, so that an application whose relay is down does not fill the disk.

1. Before a message is written, the writer counts pending rows by their index, up to the limit, at most once a second.
   The result holds for all messages of that second.
2. A result holds for all connections if the transaction is READ COMMITTED and found room. "Full" holds for all
   connections only if that transaction had written nothing, so that none of its own rows was counted. Any other result
   holds for its own connection only.
3. The count is a query in the caller's transaction, after a savepoint. It locks nothing. If it fails, earlier writes
   are kept and the transaction can go on.
4. The limit is not a quota: many writers together may exceed it within that second.
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
# How many databases are remembered. A writer is used with few; the bound is for one that is used with many.
_REMEMBERED = 64


class OutboxFull(ThresherError):  # noqa: N818
    """Too many rows wait in the outbox. Nothing was written, and the transaction is as it was."""

    retryable = True


class _Count(NamedTuple):
    """The time of a count, and whether too many rows waited."""

    at: float
    full: bool


class Outstanding:
    """The limit of one outbox. Threads may share it: two that check at once both count, with the same result."""

    def __init__(self, table: TableName, shape: Shape, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._most, self._clock = table, most, clock
        self._query: LiteralString = statement(f"{shape.prefix}_outstanding", table)
        # By database: the count that holds for all connections. By connection: a count that holds for it alone.
        self._shared: dict[tuple[str, int, str], _Count] = {}
        self._own: WeakKeyDictionary[psycopg.Connection[Any], _Count] = WeakKeyDictionary()

    def require_room(self, connection: psycopg.Connection[Any]) -> None:
        """Raise `OutboxFull` if too many rows wait, by a count of the last second or a new one."""
        info = connection.info
        database = (info.host, info.port, info.dbname)
        now = self._clock()
        counts = (self._own.get(connection), self._shared.get(database))
        full = next((count.full for count in counts if count is not None and now - count.at < _LOOK_SECONDS), None)
        if full is None:
            full = self._is_full(connection, database, now)
        if full:
            raise OutboxFull(
                f"more than {self._most} messages wait in {self._table}, so no more are stored: is its relay running? "
                "Try again later, or raise Limits(outstanding=…)."
            )

    def _is_full(self, connection: psycopg.Connection[Any], database: tuple[str, int, str], now: float) -> bool:
        waiting, newest, wrote = self._waiting(connection)
        full = waiting > self._most
        if not holds_for_all(full=full, newest=newest, wrote=wrote):
            self._own[connection] = _Count(now, full)
            return full
        if len(self._shared) >= _REMEMBERED:
            self._shared.clear()
        self._shared[database] = _Count(now, full)
        return full

    def _waiting(self, connection: psycopg.Connection[Any]) -> tuple[int, bool, bool]:
        """Return how many rows wait, whether the newest rows are visible, and whether the transaction has written."""
        cursor = OwnCursor(connection)
        with _kept_usable(connection, cursor):
            (waiting,) = cursor.execute(self._query, {"most": self._most + 1}).fetchone() or (0,)
            newest, wrote = cursor.execute(statement("outstanding_seen")).fetchone() or (False, True)
        return int(waiting), newest, wrote


def holds_for_all(*, full: bool, newest: bool, wrote: bool) -> bool:
    """Whether a count holds for other transactions too: rows that its own transaction wrote may be rolled back."""
    return newest and not (full and wrote)


@contextmanager
def _kept_usable(connection: psycopg.Connection[Any], cursor: OwnCursor) -> Iterator[None]:
    """Roll back a block that fails, and keep the rest of the caller's transaction."""
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
