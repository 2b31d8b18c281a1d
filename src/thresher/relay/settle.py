"""Executes the fates of a committed progress record in the table: the only way a row ever leaves it.

Idempotent: a crash before it is repaired by recovery, never by sending again. Rows are matched by id and create time,
so that a row that came back under an old id is not touched.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from operator import lt
from typing import Any

import psycopg

from thresher.db import TableName, statement
from thresher.db.arrays import bigint_array
from thresher.db.cursor import BigintArray, OwnCursor, TimestampArray
from thresher.db.problem import DatabaseRefused
from thresher.delivery import columns
from thresher.delivery.fate import Dead
from thresher.outbox.shape import Shape
from thresher.relay.database import explained
from thresher.relay.protocol.progress import Progress
from thresher.relay.settings import Settling

# Postgres counts from 2000.
_EPOCH = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


class Settlement:
    """Settles over one connection in autocommit."""

    def __init__(
        self, connection: psycopg.Connection[Any], outbox: TableName, shape: Shape, settling: Settling
    ) -> None:
        self._connection = connection
        self._sent = statement(f"relay_settle_{settling}", outbox)
        self._purge = f"{self._sent}\n{statement('relay_purge_mine')}"
        self._left = statement(f"relay_left_{settling}", outbox)
        self._outbox = outbox
        self._dead = statement(f"{shape.prefix}_settle_dead", outbox)

    def execute(
        self, progress: Progress, middle: Callable[[], None] = lambda: None, mark: uuid.UUID | None = None
    ) -> int:
        """Settle one record in one transaction; return how many rows it still found, durably.

        With a mark, only rows that carry it were sent by us. `middle` is called when some of it is done and none of it
        is durable.
        """
        ids, times, dead = _split(progress)
        found = 0
        with explained(), self._connection.transaction():
            cursor = OwnCursor(self._connection)
            for pairs in _rounds(ids, times):
                if mark is None:
                    found += cursor.execute(self._sent, pairs, prepare=True).rowcount
                else:
                    found += cursor.execute(self._purge, {**pairs, "leader": mark}, prepare=True).rowcount
            middle()
            if dead:
                dead_ids, dead_times, kinds, *told = ([*each] for each in zip(*dead, strict=True))
                fates = dict(zip(("reasons", "attempts", "blocking"), told, strict=True))
                pairs = {**_pairs(dead_ids, dead_times), "kinds": [str(kind) for kind in kinds], **fates}
                found += cursor.execute(self._dead, pairs).rowcount
        return found

    def require_gone(self, progress: Progress, mark: uuid.UUID | None = None, *, recovering: bool = False) -> None:
        """Raise `DatabaseRefused` if rows that were settled are still pending: they would be sent for ever.

        With a mark, those that somebody else has marked meanwhile do not count. In recovery, dead ones do not: one that
        an older attempt marked at that moment was missed, and is judged anew; of the others none is.
        """
        ids, times = (progress.ids, progress.create_times) if not recovering else _split(progress)[:2]
        query, more = self._left, {}
        if mark is not None:
            query, more = f"{query}\n{statement('relay_purge_mine')}", {"leader": mark}
        left = 0
        with explained():
            for pairs in _rounds(ids, times):
                row = OwnCursor(self._connection).execute(query, {**pairs, **more}).fetchone()
                left += 0 if row is None else row[0]
        if left:
            raise DatabaseRefused(
                f"{left} rows of {self._outbox} were sent and could not be removed: is there a trigger, a rule or a "
                "policy that keeps them?"
            )


def _split(progress: Progress) -> tuple[Sequence[int], Sequence[int], list[tuple[Any, ...]]]:
    """Return ids and create times of rows that just go, and what is to be known of the dead."""
    if progress.all_sent:
        return progress.ids, progress.create_times, []
    ids, times, dead = [], [], []
    for id_, time, fate in zip(progress.ids, progress.create_times, progress.fates, strict=True):
        if isinstance(fate, Dead):
            dead.append((id_, time, *fate))
        else:
            ids.append(id_)
            times.append(time)
    return ids, times, dead


def _rounds(ids: Sequence[int], times: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield pairs whose ids ascend; where several rows had an id one after another, one of them in each round."""
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
    return {"ids": _ids(ids), "create_times": _times(times)}


def _ids(values: Sequence[int]) -> BigintArray:
    return BigintArray(bigint_array(values))


def _times(values: Sequence[int]) -> TimestampArray:
    return TimestampArray(bigint_array(columns.less(values, _EPOCH), timestamps=True))
