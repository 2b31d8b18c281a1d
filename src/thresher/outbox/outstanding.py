"""Refuses messages while too many rows wait: a service whose relay is away fills no disk.

1. Before a message is written, the writer counts the rows that wait, no further than to the limit, by the index of
   pending rows. It does so once a second at most; what it found holds for all messages of that second.
2. The count is a query in the caller's transaction, behind a savepoint. It locks nothing, and if it fails, what was
   written before is still there and the transaction goes on.
3. The limit is no quota: many writers may pass it together within that second.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

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


class Outstanding:
    """The limit of one outbox. Safe to share by threads: two that look at once both count, and agree."""

    def __init__(self, table: TableName, shape: Shape, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._most, self._clock = table, most, clock
        self._count: LiteralString = statement(f"{shape.prefix}_outstanding", table)
        # By database: when it was looked at, and whether too many rows waited.
        self._looked: dict[tuple[str, int, str], tuple[float, bool]] = {}

    def require_room(self, connection: psycopg.Connection[Any]) -> None:
        """Raise `OutboxFull` if more rows wait than may, as far as was seen within the last second."""
        info = connection.info
        database = (info.host, info.port, info.dbname)
        now = self._clock()
        at, full = self._looked.get(database, (now - _LOOK_SECONDS, False))
        if now - at >= _LOOK_SECONDS:
            full = self._waiting(connection) > self._most
            if len(self._looked) >= _REMEMBERED:
                self._looked.clear()
            self._looked[database] = now, full
        if full:
            raise OutboxFull(
                f"more than {self._most} messages wait in {self._table}, so no more are stored: is its relay running? "
                "Try again later, or raise Limits(outstanding=…)."
            )

    def _waiting(self, connection: psycopg.Connection[Any]) -> int:
        cursor = OwnCursor(connection)
        with _kept_usable(connection, cursor):
            row = cursor.execute(self._count, {"most": self._most + 1}).fetchone()
        return 0 if row is None else int(row[0])


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
