"""Reads the head of a shard: the oldest pending rows of its buckets that are not in flight.

An idle look costs a bare probe; a few rows one prepared query; many come as Arrow through ADBC. Read committed, on the
primary, in autocommit, and nothing is written to claim rows.
"""

import math
import time
from collections.abc import Collection, Iterable
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from thresher.db import statement
from thresher.db.control import require_same
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.head_queries import aged_query, bounded_query, head_query, window_query
from thresher.db.postgres.sessions import connect, explained, incarnation
from thresher.delivery.batch import Few, read_of
from thresher.delivery.columns import integers
from thresher.outbox.shape import BUCKETS, Shape, bucket_of
from thresher.relay.arrow import Arrow
from thresher.relay.reading.spread import Spread
from thresher.relay.reading.trail import HIGHEST, Trail
from thresher.relay.reading.turns import Turns
from thresher.relay.reading.weight import Weight
from thresher.relay.settings import Settings, Settling

# Up to here, a query that returns Python's values is quicker.
_FEW = 200
# By age, a read from the head steps over the rows of other shards. With more than so many, it gives fewer rows.
_SHARDS_STEPPED_OVER = 8
# A window that holds so many times as many rows as are wanted is too wide.
_TOO_MANY = 1.5


def largest(settings: Settings) -> int:
    """Return how large a row may be to be looked at: a larger one can never be sent."""
    asked = {**settings.kafka, **settings.producer}.get("message.max.bytes", 1_000_000)
    return max(int(asked), settings.limits.batch_bytes)


class Share:
    """How many rows of a lot one bucket may give: about an equal part where all have many, and all where one has."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        # Of an equal part.
        self._factor = 1.25

    def of(self, rows: int) -> int:
        """Return what to ask each bucket for, of a lot of so many rows."""
        return max(1, min(rows, math.ceil(rows * self._factor / self._buckets)))

    def learn(self, found: int, rows: int, asked: int) -> None:
        """Ask for more where all buckets together gave too few, and for less where many were not even asked."""
        if found < 0.75 * rows:
            self._factor = min(2.0 * self._factor, 2.0 * self._buckets)
        elif asked < 0.75 * self._buckets:
            self._factor = max(0.5 * self._factor, 1.25)


class Probe:
    """Asks where there is anything, with as little as the driver and the server can do: idle shards ask all day."""

    _NAME = b"thresher_probe"

    def __init__(self, connection: psycopg.Connection[Any], settings: Settings, buckets: Collection[int]) -> None:
        self._connection = connection
        self._buckets = f"{{{','.join(map(str, buckets))}}}".encode()
        query = statement(f"{settings.shape.prefix}_probe", settings.outbox)
        with explained():
            self._require(connection.pgconn.prepare(self._NAME, query.encode()))

    def finds(self) -> frozenset[int]:
        """Return the buckets in which a row is pending."""
        with explained():
            result = self._connection.pgconn.exec_prepared(self._NAME, [self._buckets])
            self._require(result)
        return frozenset(int(result.get_value(row, 0) or b"") for row in range(result.ntuples))

    def _require(self, result: PGresult) -> None:
        if result.status not in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
            raise psycopg.errors.error_from_result(result)


class Head:
    """The head of one shard, over its own connections. For one thread."""

    def __init__(self, settings: Settings, application: str, buckets: Collection[int], since: str) -> None:
        outbox = settings.outbox
        self._settings = settings
        self._buckets = list(buckets)
        self._query = head_query(settings.shape, outbox)
        self._bounded = bounded_query(self._query)
        # Rows that were sent and stay would be stepped over.
        ages = settings.shape is Shape.THRESHER and settings.settling is Settling.DELETE
        self._turns = Turns(buckets, allowed=ages)
        self._trail = Trail()
        self._spread = Spread()
        self._aged, self._aged_counted = (aged_query(outbox, counted=counted) for counted in (False, True))
        self._window, self._window_counted = (window_query(outbox, counted=counted) for counted in (False, True))
        self._horizon = statement("relay_horizon", outbox)
        self._next = statement("outbox_next", outbox)
        self._large = statement("relay_large")
        self._largest = largest(settings)
        self._connection = connect(settings.dsn, application)
        require_same(incarnation(self._connection, outbox).since, since)
        self._arrow = Arrow(settings, application, self._connection, since)
        self._cursor = OwnCursor(self._connection)
        self._cursor.format = psycopg.pq.Format.BINARY
        self._probe = Probe(self._connection, settings, buckets)
        self._file = self._find_file()
        # The last query was cut off by its limit: there is more.
        self._deep = False
        self._weight = Weight()
        self._share = Share(len(self._buckets))

    def read(
        self, rows: int, size: int, in_flight: Collection[int], held: Collection[str], generation: int
    ) -> pa.RecordBatch | Few | None:
        """Return up to so many rows and, where rows are large, bytes of the head; None if there are none."""
        buckets = self._buckets
        if not in_flight and not self._deep:
            self._stop_aging()
            holding = self._probe.finds()
            if not holding:
                return None
            buckets = [bucket for bucket in buckets if bucket in holding]
        wanted: dict[str, Any] = {
            "in_flight": _listed(in_flight),
            "held": list(held),
            "bytes": size,
            "largest": self._largest,
            "outbox": self._settings.outbox.quoted(),
            "file": self._file,
        }
        if not self._deep and not self._turns.by_age:
            few = min(_FEW, rows)
            with explained():
                # Bounded by bytes always: for few rows that costs nothing.
                few_wanted = {**wanted, "buckets": buckets, "rows": few, "each": few}
                found = self._cursor.execute(self._bounded, few_wanted, prepare=True).fetchall()
            if not found:
                if not in_flight:
                    # There are some, and none of the file that is known, or all are held.
                    self._file = self._find_file()
                return None
            read = read_of(found)
            self._weight.learn(read.nbytes, len(found))
            if len(found) < few or few == rows or read.nbytes > size // 2:
                self._turn(found[-1][0], found[-1][3])
                return read
        wanted |= {"buckets": self._buckets, "rows": rows}
        batch = self._read_many(wanted, in_flight, generation)
        return batch if batch.num_rows else None

    def close(self) -> None:
        """Let go of the connections."""
        self._connection.close()
        self._arrow.close()

    def _turn(self, id_: int, key: bytes | None) -> int:
        """Begin behind the last row's bucket next time: one with a long backlog does not keep the others waiting, nor
        does one whose next row was too large to come along.

        Returns how many buckets were asked.
        """
        last = id_ % BUCKETS if key is None else bucket_of(key)
        if last not in self._buckets:
            # Its key was too large to be looked at.
            return len(self._buckets)
        place = self._buckets.index(last) + 1
        self._buckets = self._buckets[place:] + self._buckets[:place]
        return place

    def _read_many(self, wanted: dict[str, Any], in_flight: Collection[int], generation: int) -> pa.RecordBatch:
        # What compresses well is large without being stored out of line.
        heavy = self._weight.of(wanted["rows"]) > wanted["bytes"] or self._holds_large_rows()
        if heavy:
            self._stop_aging()
        if self._turns.quiet and (batch := self._read_quiet(wanted)).num_rows:
            return batch
        batch = self._read_by_age(wanted, in_flight, generation) if self._turns.by_age else None
        if batch is None:
            batch = self._read_by_buckets(wanted, heavy)
        self._deep = batch.num_rows >= _FEW
        return batch

    def _read_quiet(self, wanted: dict[str, Any]) -> pa.RecordBatch:
        """Return rows of buckets that have little, so that they do not wait for what others have much of."""
        asked = {"buckets": list(self._turns.quiet), "each": self._turns.quiet_rows(wanted["rows"])}
        self._turns.quiet_read()
        # What they weigh is not what the others do.
        return self._arrow.fetch(self._bounded, {**wanted, **asked})[0]

    def _read_by_buckets(self, wanted: dict[str, Any], heavy: bool) -> pa.RecordBatch:
        rows = wanted["rows"]
        each, all_ = self._share.of(rows), len(self._buckets)
        began = time.monotonic()
        batch = self._arrow.fetch(self._bounded if heavy else self._query, {**wanted, "each": each})[0]
        found, seconds = batch.num_rows, time.monotonic() - began
        if found:
            self._weight.learn(batch.nbytes, found)
            asked = self._turn(batch.column("id")[-1].as_py(), batch.column("key")[-1].as_py())
            if batch.nbytes <= wanted["bytes"] // 2:
                self._share.learn(found, rows, asked if found >= rows else all_)
            # Where one bucket was asked for much more than its part, it may have given most of it.
            even = asked >= 0.75 * all_ and each * all_ <= 2 * rows
            self._turns.by_buckets(found, rows, seconds, even=even)
        return batch

    def _read_by_age(
        self, wanted: dict[str, Any], in_flight: Collection[int], generation: int
    ) -> pa.RecordBatch | None:
        """Go on behind the last row, or read from the head, also where what comes next is not old enough.

        Returns None where nothing comes next: a read from the head would step over all that other shards have left.
        """
        began = time.monotonic()
        horizon = None if wanted["held"] else self._trail.horizon(generation, began)
        batch = None
        if horizon is not None and (batch := self._go_on(wanted, in_flight, horizon)) is None:
            self._turns.end()
            self._trail.end()
            return None
        if batch is not None and batch.num_rows:
            self._turns.went_on(_counts(batch), time.monotonic() - began)
        else:
            batch = self._begin(wanted, generation)
        if batch.num_rows:
            self._weight.learn(batch.nbytes, batch.num_rows)
        if not self._turns.by_age:
            self._trail.end()
        return batch.drop_columns("bucket")

    def _begin(self, wanted: dict[str, Any], generation: int) -> pa.RecordBatch:
        """Return rows from the head on."""
        part = min(1.0, _SHARDS_STEPPED_OVER * len(self._buckets) / BUCKETS)
        rows = max(1, int(part * wanted["rows"]))
        began = time.monotonic()
        self._trail.begin(None if wanted["held"] else self._find_horizon(), generation)
        batch = self._arrow.fetch(self._aged, {**wanted, "rows": rows}, otherwise=self._aged_counted)[0]
        ended = time.monotonic()
        self._turns.from_head(_counts(batch), rows, ended - began)
        if batch.num_rows < rows:
            self._trail.end()
            return batch
        self._trail.began(batch.column("id")[-1].as_py(), ended)
        self._spread.begin(integers(batch.column("id").slice(rows // 2)))
        if part < 1 and self._trail.horizon(generation, ended) is None:
            # All reads would be from the head.
            self._turns.leave()
        return batch

    def _go_on(self, wanted: dict[str, Any], in_flight: Collection[int], horizon: str) -> pa.RecordBatch | None:
        """Return rows behind the last one that are old enough, up to the first that is not; None if no row that may be
        sent is there, of whatever age."""
        behind = self._trail.last
        start = {**wanted, "horizon": horizon, "in_flight": _listed(id_ for id_ in in_flight if id_ > behind)}
        window, upto = self._look_among(start, behind)
        if not window.num_rows and (following := self._find_next(behind)) is not None:
            # Others, or nobody, had many ids in succession.
            behind = following - 1
            window, upto = self._look_among(start, behind)
        if not window.num_rows:
            return None
        found, rows = window.num_rows, wanted["rows"]
        new = pc.index(window.column("old"), False).as_py()
        batch = window.drop_columns("old").slice(0, rows if new < 0 else min(new, rows))
        self._spread.learn(found, upto - behind)
        if batch.num_rows == rows:
            self._trail.went(batch.column("id")[-1].as_py())
        elif new < 0:
            self._trail.went(upto)
        else:
            self._trail.end(futile=2 * new < rows)
        return batch

    def _look_among(self, wanted: dict[str, Any], behind: int) -> tuple[pa.RecordBatch, int]:
        """Return the rows in a window of ids that should hold about as many as are wanted, and where it ends."""
        rows = wanted["rows"]
        most = max(rows + 1, int(_TOO_MANY * rows))
        upto = min(behind + self._spread.of(rows), HIGHEST)
        start = {**wanted, "last": behind, "rows": most}
        while True:
            window, *rest = self._arrow.fetch(
                self._window, {**start, "upto": upto}, otherwise=self._window_counted, by_pages=True
            )
            found = window.num_rows
            window = _by_id(window)
            if found < most and not rest:
                return window, upto
            # Some were left out, and nobody knows which: there are at least so many up to the one at this place.
            upto = min(window.column("id")[min(rows, found // 2) - 1].as_py(), upto - 1)

    def _stop_aging(self) -> None:
        self._turns.stop()
        self._trail.leave()

    def _find_file(self) -> int | None:
        with explained():
            row = self._cursor.execute(
                statement("relay_file"), [self._settings.outbox.quoted()], prepare=True
            ).fetchone()
        return None if row is None else row[0]

    def _find_next(self, last: int) -> int | None:
        """Return the id of the shard's first row behind this one."""
        with explained():
            row = self._cursor.execute(self._next, {"buckets": self._buckets, "last": last}, prepare=True).fetchone()
        return None if row is None else row[0]

    def _find_horizon(self) -> str | None:
        with explained():
            row = self._cursor.execute(self._horizon, prepare=True).fetchone()
        return None if row is None else row[0]

    def _holds_large_rows(self) -> bool:
        with explained():
            row = self._cursor.execute(self._large, [self._settings.outbox.quoted()], prepare=True).fetchone()
        return row is not None and bool(row[0])


def _counts(batch: pa.RecordBatch) -> dict[int, int]:
    """Return how many rows there are of each bucket."""
    return {each["values"]: each["counts"] for each in batch.column("bucket").value_counts().to_pylist()}


def _by_id(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows by age, which is how they mostly lie already."""
    ids = batch.column("id")
    if pc.all(pc.less(ids[:-1], ids[1:]), min_count=0).as_py():
        return batch
    return batch.take(pc.sort_indices(ids))


def _listed(ids: Iterable[int]) -> str:
    """Return an array as text: thousands of numbers are quoted in one go."""
    return f"{{{','.join(map(str, ids))}}}"
