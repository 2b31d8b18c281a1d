"""Settles rows in Postgres: deletes or stamps sent and filtered rows, and moves dead rows to the dead-letter table.

Idempotent: a crash before the commit is repaired by recovery, never by sending again. Rows are matched by id and create
time, so that another row with a reused id is not touched.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from operator import lt
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from thresher.db.names import TableName
from thresher.db.outbox_store import Fates, Settling
from thresher.db.postgres.arrays import bigint_array
from thresher.db.postgres.cursor import BigintArray, OwnCursor, TimestampArray
from thresher.db.postgres.sessions import explained
from thresher.db.problem import DatabaseRefused
from thresher.db.shape import Shape
from thresher.db.shape_columns import created, mark_parts
from thresher.db.statements import statement

# Postgres counts time from the year 2000.
_EPOCH = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


class PostgresSettlement:
    """Settles over one connection in autocommit."""

    def __init__(
        self, connection: psycopg.Connection[Any], outbox: TableName, shape: Shape, settling: Settling
    ) -> None:
        self._connection = connection
        self._sent = statement(f"relay_settle_{settling}", outbox, created=created(shape, "o"))
        self._left = statement(f"relay_left_{settling}", outbox, created=created(shape, "o"))
        self._settled = statement("relay_settled", outbox)
        self._dead = statement(f"{shape.prefix}_settle_dead", outbox)
        self._marked = statement("relay_purge_mine", None, **mark_parts(shape))
        self._outbox = outbox

    def settle(self, fates: Fates, *, mark: UUID | None = None, middle: Callable[[], None] = lambda: None) -> int:
        """Settle in one transaction; return how many pending rows were found, once that is durable."""
        found = 0
        with explained(), self._connection.transaction():
            cursor = OwnCursor(self._connection)
            query, more = self._under(mark, self._sent)
            for pairs in _rounds(fates.ids, fates.create_times):
                found += cursor.execute(query, {**pairs, **more}, prepare=True).rowcount
            middle()
            if fates.dead:
                ids, times, kinds, *told = ([*each] for each in zip(*fates.dead, strict=True))
                columns = dict(zip(("reasons", "attempts", "blocking"), told, strict=True))
                values = {**_pairs(ids, times), "kinds": [str(kind) for kind in kinds], **columns}
                found += cursor.execute(self._dead, values).rowcount
        return found

    def require_gone(self, ids: Sequence[int], create_times: Sequence[int], *, mark: UUID | None = None) -> None:
        """Raise `DatabaseRefused` if any of the rows is still pending: it would be sent again and again."""
        left = self._count(ids, create_times, *self._under(mark, self._left))
        if left:
            raise DatabaseRefused(
                f"{left} rows of {self._outbox} were sent and could not be removed: is there a trigger, a rule or a "
                "policy that keeps them?"
            )

    def settled(self, ids: Sequence[int], create_times: Sequence[int]) -> int:
        """Return how many of the rows are stamped, by any sender, or dead."""
        return self._count(ids, create_times, self._settled, {})

    def _count(self, ids: Sequence[int], create_times: Sequence[int], query: Any, more: dict[str, Any]) -> int:
        found = 0
        with explained():
            for pairs in _rounds(ids, create_times):
                row = OwnCursor(self._connection).execute(query, {**pairs, **more}).fetchone()
                found += 0 if row is None else row[0]
        return found

    def _under(self, mark: UUID | None, query: str) -> tuple[Any, dict[str, Any]]:
        """Return the statement, restricted to rows that carry the mark if there is one, and its further values."""
        return (query, {}) if mark is None else (f"{query}\n{self._marked}", {"leader": mark})


def _rounds(ids: Sequence[int], times: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield ids and create times with ascending, unique ids. Rows that had one id in turn are in different rounds."""
    if ids and all(map(lt, ids, islice(ids, 1, None))):
        yield _pairs(ids, times)
        return
    left = sorted(set(zip(ids, times, strict=True)))
    while left:
        now: dict[int, int] = {}
        later = [(id_, time) for id_, time in left if now.setdefault(id_, time) != time]
        yield _pairs([*now], [*now.values()])
        left = later


def _pairs(ids: Sequence[int], times: Sequence[int]) -> dict[str, Any]:
    return {
        "ids": BigintArray(bigint_array(ids)),
        "create_times": TimestampArray(bigint_array(since_2000(times), timestamps=True)),
    }


def since_2000(times: Sequence[int]) -> "array[int]":
    """Return times as Postgres counts them, computed by Arrow: a Python loop takes 1 ms for ten thousand."""
    given = pa.Array.from_buffers(pa.int64(), len(times), [None, pa.py_buffer(array("q", times))])
    values = array("q")
    values.frombytes(memoryview(pc.subtract(given, _EPOCH).buffers()[1])[: 8 * len(times)])
    return values
