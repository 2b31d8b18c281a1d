"""Reads the pending rows of a shard: the oldest rows of its buckets that are not in flight.

Few rows, or none, cost one prepared query. Many rows are read as Arrow through ADBC, as `ScanPlan` decides. Reads run
on the primary, in autocommit with READ COMMITTED, and write nothing to the table.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from thresher.core.secrets import revealed
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
    Observed,
    OldestTransaction,
    Position,
    RowAfter,
    ScanPlan,
    Window,
    may_read_after,
)
from thresher.relay.settings import Settings
from thresher.relay.store import store_of

# Up to this many rows, a query that returns Python values is faster.
_FEW = 200
# A window with more than this many times the wanted rows is too wide.
_TOO_MANY = 1.5


def largest_row(settings: Settings) -> int:
    """Return the largest size of a row that is read whole: a larger one can never be sent."""
    asked = {**settings.kafka, **settings.producer}.get("message.max.bytes", 1_000_000)
    return max(int(revealed(asked)), settings.limits.batch_bytes)


class PendingRows:
    """The pending rows of one shard. For one thread."""

    def __init__(
        self,
        settings: Settings,
        application: str,
        buckets: Collection[int],
        since: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        # Without deletes, windows would visit the rows that were sent again and again.
        windows = settings.shape is Shape.THRESHER and settings.settle is Settling.DELETE
        self._buckets = list(buckets)
        # Transforms may give rows of several buckets one key.
        self._by_id = bool(settings.transform)
        shards = max(1, BUCKETS // len(self._buckets))
        self._plan = ScanPlan(len(self._buckets), windows=windows, shards=shards, by_id=self._by_id)
        self._reader: PendingReader = store_of(settings).pending_reader(application, since=since)
        self._largest = largest_row(settings)
        # Whether the last read found many rows: then the query for few rows is left out.
        self._deep = False
        self._row_size = RowSize()

    def read(self, request: ReadRequest) -> pa.RecordBatch | FewRows | None:
        """Return the requested rows: those of a key in order, or all by id for transforms. None if there are none."""
        if request.sweeping:
            found = self._reader.few(self._wanted(request, self._buckets, request.rows, each=request.rows))
            return read_of(found) if found else None
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
        """Close the connections."""
        self._reader.close()

    def _read_many(self, request: ReadRequest) -> pa.RecordBatch:
        # A row that compresses well may be large without being stored out of line (TOAST).
        heavy = self._row_size.of(request.rows) > request.bytes or self._reader.holds_large_rows()
        observed = Observed(
            now=self._clock(),
            generation=request.generation,
            rows=request.rows,
            # Confined reads leave out rows too, even if they name no topic at the moment.
            left_out=bool(request.among or request.held or request.held_keys or request.held_rows),
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
            # A fair read does not count: the rows of quiet buckets may be of another size.
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
        """Return the position before the shard's first row; None if keys are blocked, or there is no row."""
        # The order matters: every row of an older transaction is committed when the first row is looked up.
        oldest = self._reader.oldest_transaction()
        wanted = self._wanted(request, self._buckets, request.rows)
        first = None if oldest is None else self._reader.next_id(wanted, after=LOWEST)
        if oldest is None or first is None:
            self._plan.end()
            return None
        return self._plan.begin(first - 1, oldest, observed)

    def _read_window(self, request: ReadRequest, position: Position, observed: Observed) -> pa.RecordBatch | None:
        """Return rows after the position, up to the first that `may_read_after` refuses; None if there are none."""
        window, upto = self._look_among(request, position.last, position.oldest_transaction)
        if not window.num_rows:
            # This shard had none of these ids: skip to its next one.
            wanted = self._wanted(request, self._buckets, request.rows)
            following = self._reader.next_id(wanted, after=upto)
            if following is None:
                self._plan.end()
                return None
            window, upto = self._look_among(request, following - 1, position.oldest_transaction)
        rows = min(_readable(window, position, observed), request.rows)
        batch = window.drop_columns(["age", "oldest_age"]).slice(0, rows)
        if batch.num_rows == window.num_rows:
            self._plan.read_window(upto)
        elif batch.num_rows == request.rows:
            self._plan.read_window(batch.column("id")[-1].as_py())
        else:
            self._plan.cut_off(batch.num_rows, observed)
        return batch

    def _look_among(self, request: ReadRequest, after: int, oldest_transaction: str) -> tuple[pa.RecordBatch, int]:
        """Return the rows in a window of about the wanted size, by id, and the id where the window ends."""
        rows = request.rows
        most = max(rows + 1, int(_TOO_MANY * rows))
        upto = min(after + self._plan.width(rows), HIGHEST)
        wanted = self._wanted(request, self._buckets, most)
        while True:
            window, whole = self._reader.window(wanted, after=after, upto=upto, oldest_transaction=oldest_transaction)
            if whole:
                self._plan.learn_width(window.num_rows, upto - after)
                return window, upto
            # The read was cut off, so the window is too wide. Try one that ends at a row that was found.
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
            among=request.among,
            hot_keys=request.held_keys,
            by_id=self._by_id,
        )

    def _turn(self, id_: int, key: bytes | None) -> int:
        """Rotate the buckets, so that the next read begins after the last row's. Return how many buckets were asked.

        So a bucket with a long backlog does not keep the others waiting, and a row that did not fit into this read
        comes first in its turn.
        """
        last = id_ % BUCKETS if key is None else bucket_of(key)
        if last not in self._buckets:
            # The row's key was too large to be read, so its bucket is not known.
            return len(self._buckets)
        place = self._buckets.index(last) + 1
        self._buckets = self._buckets[place:] + self._buckets[:place]
        return place


def _readable(window: pa.RecordBatch, position: Position, observed: Observed) -> int:
    """Return how many rows come before the first that `may_read_after` refuses."""
    rows: int = window.num_rows
    if not rows:
        return 0
    ages = window.column("age")
    oldest = OldestTransaction(age=window.column("oldest_age")[0].as_py(), generation=position.generation)
    youngest = RowAfter(age=pc.min(ages).as_py(), generation=observed.generation, left_out=observed.left_out)
    if may_read_after(youngest, oldest):
        # The common case: if the youngest row may be read, all may.
        return rows
    # Rows of one transaction have one age.
    refused = [age for age in pc.unique(ages).to_pylist() if not may_read_after(replace(youngest, age=age), oldest)]
    place: int = pc.index(pc.is_in(ages, value_set=pa.array(refused, ages.type)), True).as_py()
    return place
