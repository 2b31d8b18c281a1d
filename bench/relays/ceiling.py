"""The ceiling: a plain program that copies rows from the table to the topic as fast as it can, without guarantees.

One process per shard. Reading, sending and deleting overlap, each in its own thread, one batch apart. It reads after
the last row that it read, misses rows that commit late, and would repeat rows after a crash. Like the relay, it takes
rows from Arrow without Python code for each row. Its batch size, number of processes and reading order are tuned by
trying neighbours of the best setting until none is better.
"""

import multiprocessing
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, repeat, starmap
from typing import Any

import adbc_driver_postgresql.dbapi
import psycopg
from confluent_kafka import Producer

from bench.relays.place import COLUMNS, PATIENCE_SECONDS, Place
from thresher.db.postgres.arrays import bigint_array
from thresher.db.postgres.cursor import BigintArray, OwnCursor
from thresher.delivery.columns import integers, lists, texts
from thresher.relay.names import buckets_of

CONTEXT = multiprocessing.get_context("spawn")
# Per process. With fewer batches, too many rows are read before the measured time and sent within it.
_LEAST_BATCHES = 10
_AT_ONCE = 1_000
_OPTIONS = "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off -c max_parallel_workers_per_gather=0"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings of the copiers."""

    processes: int = 2
    batch_rows: int = 20_000
    overlapped: bool = True
    # By age, which skips the rows of other processes; or one bucket after another.
    by_age: bool = True

    def __str__(self) -> str:
        how = "overlapped" if self.overlapped else "one step after another"
        order = "by age" if self.by_age else "by bucket"
        return f"{self.processes} processes, {self.batch_rows:,} rows a batch, {order}, {how}"

    def neighbours(self, rows: int) -> list["Tuning"]:
        """Return the tunings that differ in one setting, and that fit a backlog of this many rows."""
        found = [
            replace(self, batch_rows=self.batch_rows * 2),
            replace(self, batch_rows=self.batch_rows // 2),
            replace(self, processes=self.processes + 1),
            replace(self, processes=self.processes - 1),
            replace(self, by_age=not self.by_age),
            replace(self, overlapped=not self.overlapped),
        ]
        return [each for each in found if each.processes and each.fits(rows)]

    def fits(self, rows: int) -> bool:
        """Whether it copies a backlog of this many rows in enough batches."""
        return self.batch_rows * self.processes * _LEAST_BATCHES <= rows


def tuned(rows: int, measure: Callable[[Tuning], float], say: Callable[[str], None]) -> Tuning:
    """Return the best tuning for a backlog of this many rows, starting from the default; print every figure."""
    best = Tuning()
    while not best.fits(rows):
        best = replace(best, batch_rows=best.batch_rows // 2)
    rates = {best: measure(best)}
    say(f"ceiling: {best}: {rates[best]:,.0f} rec/s")
    better = True
    while better:
        better = False
        for other in best.neighbours(rows):
            if other in rates:
                continue
            rates[other] = measure(other)
            say(f"ceiling: {other}: {rates[other]:,.0f} rec/s")
            if rates[other] > rates[best]:
                best, better = other, True
                break
    say(f"ceiling: the best is {best}")
    return best


@contextmanager
def copying(place: Place, topic: str, tuning: Tuning) -> Iterator[None]:
    """Run the copiers while the context lasts."""
    copiers = [
        CONTEXT.Process(
            target=copy, args=(place.bare(), topic, buckets_of(shard, tuning.processes), tuning), daemon=True
        )
        for shard in range(tuning.processes)
    ]
    for copier in copiers:
        copier.start()
    try:
        yield
    finally:
        for copier in copiers:
            copier.join(10)
            if copier.is_alive():
                copier.kill()


def copy(place: Place, topic: str, buckets: list[int], tuning: Tuning) -> None:
    """Copy the rows of some buckets until none is left."""
    copier = _Copier(place, topic, buckets, tuning)
    threads = [threading.Thread(target=each) for each in (copier.read, copier.delete)]
    for thread in threads:
        thread.start()
    copier.send()
    for thread in threads:
        thread.join()


class _Copier:
    """The three steps, and the queues between them; None is the end of a queue."""

    def __init__(self, place: Place, topic: str, buckets: list[int], tuning: Tuning) -> None:
        self._dsn = psycopg.conninfo.make_conninfo(place.dsn, options=_OPTIONS)
        self._producer = Producer({**place.client(), "queue.buffering.max.messages": 1_000_000})
        self._topic, self._buckets, self._tuning = topic, buckets, tuning
        self._tables: queue.Queue[Any] = queue.Queue(1)
        self._sent: queue.Queue[Any] = queue.Queue(1)
        self._deleted: queue.SimpleQueue[None] = queue.SimpleQueue()

    def read(self) -> None:
        behind: tuple[int, ...] = (-1,) if self._tuning.by_age else (-1, -1)
        with adbc_driver_postgresql.dbapi.connect(self._dsn, autocommit=True) as arrow, arrow.cursor() as cursor:
            while True:
                cursor.execute(_head(self._buckets, behind, self._tuning))
                table = cursor.fetch_arrow_table()
                if not table.num_rows:
                    self._tables.put(None)
                    return
                last = (table["bucket"][-1].as_py(), table["id"][-1].as_py())
                behind = last[1:] if self._tuning.by_age else last
                self._tables.put(table.combine_chunks().to_batches()[0])
                if not self._tuning.overlapped:
                    self._deleted.get()

    def send(self) -> None:
        while (batch := self._tables.get()) is not None:
            _, ids, _, keys, values, *heads = batch.columns
            head_names, head_values = (
                lists(heads[0], texts(heads[0].flatten())),
                lists(heads[1], heads[1].flatten().to_pylist()),
            )
            pairs = map(list, map(zip, head_names, head_values))
            calls = starmap(
                self._producer.produce,
                zip(
                    repeat(self._topic), values.to_pylist(), keys.to_pylist(), repeat(-1), repeat(None), repeat(None),
                    repeat(0), pairs, strict=False,
                ),
            )  # fmt: skip
            # Lets the other threads run.
            for _ in range(0, batch.num_rows, _AT_ONCE):
                deque(islice(calls, _AT_ONCE), maxlen=0)
            if self._producer.flush(PATIENCE_SECONDS):
                raise TimeoutError("the broker did not take the records")
            self._sent.put(integers(ids))
        self._sent.put(None)

    def delete(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            cursor = OwnCursor(connection)
            while (ids := self._sent.get()) is not None:
                array = BigintArray(bigint_array(ids))
                cursor.execute("DELETE FROM outbox WHERE id = ANY (%s)", [array], prepare=True)
                self._deleted.put(None)


def _head(buckets: list[int], behind: tuple[int, ...], tuning: Tuning) -> str:
    array = "{" + ",".join(map(str, buckets)) + "}"
    mine = "true" if tuning.processes == 1 else f"bucket = ANY ('{array}'::smallint[])"
    order = "id" if tuning.by_age else "bucket, id"
    return (
        f"SELECT bucket, id, {COLUMNS} FROM outbox WHERE {mine} AND dispatched_time IS NULL "  # noqa: S608
        f"AND ({order}) > ({', '.join(map(str, behind))}) ORDER BY {order} LIMIT {tuning.batch_rows}"
    )
