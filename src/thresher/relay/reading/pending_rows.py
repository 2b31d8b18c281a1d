"""Reads the pending rows of a shard: the oldest of its buckets that are not in flight.

An idle look and a few rows cost one prepared query; many rows come as Arrow through ADBC, as `ScanPlan` says.
Reads are read committed, on the primary, in autocommit, and nothing is written to claim rows.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from thresher.db.outbox_store import PendingReader, Settling, Wanted
from thresher.db.shape import BUCKETS, Shape, bucket_of
from thresher.delivery.reading.batch_size import RowSize
from thresher.delivery.reading.row_source import ReadRequest
from thresher.delivery.stored_rows import FewRows, read_of
from thresher.relay.reading.scan_plan import (
    HIGHEST,
    LOWEST,
    ByBuckets,
    FromHead,
    Horizon,
    Observed,
    Position,
    RowBehind,
    ScanPlan,
    Window,
    may_read_behind,
)
from thresher.relay.settings import Settings
from thresher.relay.store import store_of

# Up to here, a query that returns Python's values is quicker.
_FEW = 200
# A window with this many times the rows that are wanted is too wide.
_TOO_MANY = 1.5


def largest_row(settings: Settings) -> int:
    """Return how large a row may be to be looked at: a larger one can never be sent."""
    asked = {**settings.kafka, **settings.producer}.get("message.max.bytes", 1_000_000)
    return max(int(asked), settings.limits.batch_bytes)


class PendingRows:
    """The pending rows of one shard. For one thread."""

    def __init__(self, settings: Settings, application: str, buckets: Collection[int], since: str) -> None:
        # Rows that were sent and stay would be visited by windows for ever.
        windows = settings.shape is Shape.THRESHER and settings.settle is Settling.DELETE
        self._buckets = list(buckets)
        # Transforms may give rows of several buckets one key.
        self._by_id = bool(settings.transform)
        shards = max(1, BUCKETS // len(self._buckets))
        self._plan = ScanPlan(len(self._buckets), windows=windows, shards=shards, by_id=self._by_id)
        self._reader: PendingReader = store_of(settings).pending_reader(application, since=since)
        self._largest = largest_row(settings)
        # The last read of many rows found many: the query for a few is not worth while.
        self._deep = False
        self._row_size = RowSize()

    def read(self, request: ReadRequest) -> pa.RecordBatch | FewRows | None:
        """Return rows in the order of each key, or by id for transforms, by what was asked for; None without any."""
        if not self._deep:
            if not request.in_flight:
                self._plan.idle()
            few = min(_FEW, request.rows)
            found = self._reader.few(self._wanted(request, self._buckets, few, each=few))
            if not found:
                return None
            read = read_of(found)
            self._row_size.learn(read.nbytes, len(found))
            if len(found) < few or few == request.rows or read.nbytes > request.bytes // 2:
                self._turn(found[-1][0], found[-1][3])
                return read
        batch = self._read_many(request)
        self._deep = batch.num_rows >= _FEW
        return batch if batch.num_rows else None

    def close(self) -> None:
        """Let go of the connections."""
        self._reader.close()

    def _read_many(self, request: ReadRequest) -> pa.RecordBatch:
        # What compresses well is large without being stored out of line.
        heavy = self._row_size.of(request.rows) > request.bytes or self._reader.holds_large_rows()
        observed = Observed(
            now=time.monotonic(),
            generation=request.generation,
            rows=request.rows,
            left_out=bool(request.held or request.held_keys or request.held_rows),
            heavy=heavy,
        )
        plan = self._plan.next(observed)
        position = plan.position if isinstance(plan, Window) else None
        if isinstance(plan, FromHead):
            position = self._first_position(request, observed)
        batch = None if position is None else self._read_window(request, position, observed)
        if batch is None or not batch.num_rows:
            by_buckets = plan if isinstance(plan, ByBuckets) else ByBuckets(self._plan.each(request.rows))
            batch = self._read_by_buckets(request, by_buckets, observed)
        if batch.num_rows and not (isinstance(plan, ByBuckets) and plan.fair):
            # Rows of quiet buckets may be larger than the others.
            self._row_size.learn(batch.nbytes, batch.num_rows)
        return batch

    def _read_by_buckets(self, request: ReadRequest, plan: ByBuckets, observed: Observed) -> pa.RecordBatch:
        wanted = self._wanted(request, self._buckets, request.rows, each=plan.each)
        batch = self._reader.by_buckets(wanted, bounded=observed.heavy)
        found = batch.num_rows
        if found:
            asked = self._turn(batch.column("id")[-1].as_py(), batch.column("key")[-1].as_py())
            if not plan.fair and batch.nbytes <= request.bytes // 2:
                self._plan.learn_share(found, asked if found >= request.rows else len(self._buckets), request.rows)
        self._plan.read_by_buckets(found, plan, observed)
        return batch

    def _first_position(self, request: ReadRequest, observed: Observed) -> Position | None:
        """Return the position before the shard's first row; None where keys are blocked, or no row is there."""
        # In this order: every row that is older than the horizon is committed when the first row is looked up.
        horizon = self._reader.oldest_transaction()
        wanted = self._wanted(request, self._buckets, request.rows)
        first = None if horizon is None else self._reader.next_id(wanted, after=LOWEST)
        if horizon is None or first is None:
            self._plan.end()
            return None
        return self._plan.begin(first - 1, horizon, observed)

    def _read_window(self, request: ReadRequest, position: Position, observed: Observed) -> pa.RecordBatch | None:
        """Return rows behind the position, up to the first that may not be read; None if no row is there."""
        window, upto = self._look_among(request, position.last, position.horizon)
        if not window.num_rows:
            # Other shards, or nobody, had many ids in succession.
            wanted = self._wanted(request, self._buckets, request.rows)
            following = self._reader.next_id(wanted, after=upto)
            if following is None:
                self._plan.end()
                return None
            window, upto = self._look_among(request, following - 1, position.horizon)
        rows = min(_readable(window, position, observed), request.rows)
        batch = window.drop_columns(["age", "horizon_age"]).slice(0, rows)
        if batch.num_rows == window.num_rows:
            self._plan.read_window(upto)
        elif batch.num_rows == request.rows:
            self._plan.read_window(batch.column("id")[-1].as_py())
        else:
            self._plan.cut_off(batch.num_rows, observed)
        return batch

    def _look_among(self, request: ReadRequest, after: int, horizon: str) -> tuple[pa.RecordBatch, int]:
        """Return the rows in a window that should hold about as many as are wanted, by id, and where it ends."""
        rows = request.rows
        most = max(rows + 1, int(_TOO_MANY * rows))
        upto = min(after + self._plan.width(rows), HIGHEST)
        wanted = self._wanted(request, self._buckets, most)
        while True:
            window, whole = self._reader.window(wanted, after=after, upto=upto, oldest_transaction=horizon)
            if whole:
                self._plan.learn_width(window.num_rows, upto - after)
                return window, upto
            # Some rows are missing: there are at least so many up to the one at this place.
            upto = min(window.column("id")[min(rows, window.num_rows // 2) - 1].as_py(), upto - 1)

    def _wanted(self, request: ReadRequest, buckets: Sequence[int], rows: int, each: int | None = None) -> Wanted:
        return Wanted(
            buckets=buckets,
            rows=rows,
            rows_per_bucket=each,
            batch_bytes=request.bytes,
            largest_bytes=self._largest,
            in_flight={**request.held_rows, **request.in_flight} if request.held_rows else request.in_flight,
            held_topics=request.held,
            hot_keys=request.held_keys,
            by_id=self._by_id,
        )

    def _turn(self, id_: int, key: bytes | None) -> int:
        """Begin behind the last row's bucket next time, and return how many buckets were asked.

        So a bucket with a long backlog does not keep the others waiting, nor does one whose next row was too large to
        come along.
        """
        last = id_ % BUCKETS if key is None else bucket_of(key)
        if last not in self._buckets:
            # Its key was too large to be looked at.
            return len(self._buckets)
        place = self._buckets.index(last) + 1
        self._buckets = self._buckets[place:] + self._buckets[:place]
        return place


def _readable(window: pa.RecordBatch, position: Position, observed: Observed) -> int:
    """Return how many rows come before the first that may not be read behind the position."""
    rows: int = window.num_rows
    if not rows:
        return 0
    ages = window.column("age")
    horizon = Horizon(age=window.column("horizon_age")[0].as_py(), generation=position.generation)
    youngest = RowBehind(age=pc.min(ages).as_py(), generation=observed.generation, left_out=observed.left_out)
    if may_read_behind(youngest, horizon):
        # As it mostly is: then all may be.
        return rows
    # Rows of one transaction have one age.
    refused = [age for age in pc.unique(ages).to_pylist() if not may_read_behind(replace(youngest, age=age), horizon)]
    place: int = pc.index(pc.is_in(ages, value_set=pa.array(refused, ages.type)), True).as_py()
    return place
