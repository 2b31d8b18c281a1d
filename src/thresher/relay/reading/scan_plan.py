"""Decides which rows a shard reads next: the head of each bucket, or all its rows in a window of ids.

**Safety.** A read by buckets overtakes nothing: it begins at the head of each bucket, and leaves out only rows in
flight. A window is cut off at the first row that `may_read_after` refuses. That rule alone makes windows safe,
whatever the plan.

**Speed.** Windows visit each page of a backlog once. Reads by buckets step over rows that were settled and are not
vacuumed yet. Reads by buckets are for tables without our index, for large rows, and for buckets with few rows.
"""

import math
from dataclasses import dataclass, replace

# Below every id in use, and the highest bigint.
LOWEST, HIGHEST = -(2**63), 2**63 - 1
# A position is dropped after this time: a row that commits late, with an id before the position, waits until then.
# Also, transaction ids of a busy server wrap around within days, and new rows would look old.
_POSITION_SECONDS = 10.0
# During a backlog, a read by buckets comes this often, with few rows of each, so that a quiet bucket does not wait for
# older rows of the others. Also the time without windows after a window that gave few rows.
_FAIR_SECONDS, _FAIR_ROWS = 0.5, 64
# How many times an equal share one bucket may give in a read by id: a bucket that has all rows fills 1/8 of it or more.
_BY_ID_SHARE = 4
# A window aims at a little less than a full read, because rows beyond it are read again; and its largest growth.
_AIM, _MAX_GROWTH = 0.95, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestTransaction:
    """The oldest transaction that was running just before the shard's first row was looked up.

    `age` is the age of that transaction, prepared ones included. An age is a number of transactions: how many have
    begun since. `generation` counts how often the read-ahead had been discarded by then.
    """

    age: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAfter:
    """A row that a window found after the rows read before.

    `age` is the age of the transaction or savepoint that wrote it, counted in the same way. `generation` and
    `left_out` belong to the read: how often the read-ahead was discarded, and whether topics, keys or rows are held.
    """

    age: int
    generation: int
    left_out: bool = False


def may_read_after(row: RowAfter, oldest: OldestTransaction) -> bool:
    """Whether a row may be read after the rows read before, without overtaking a row that it has to follow.

    1. The row's transaction began before `oldest`, so it had ended when `oldest` was looked up. So the row
       was committed when the shard's first row was looked up, and so was every row that it has to follow. Those rows
       have been read, or are in this window, which is ordered by id.
    2. The read-ahead was not discarded since: otherwise a row read before may no longer be in flight.
    3. Nothing is held: otherwise rows were left out, and will come back with lower ids.

    A savepoint begins after its transaction: as long as that transaction runs, `oldest` is not younger than either.
    Ages are counted modulo 2³², and `oldest` is used for seconds only. So a negative age of it is refused. A row that
    was frozen long ago may look new, which only costs a read from the head.
    """
    same = row.generation == oldest.generation and not row.left_out
    return same and 0 <= oldest.age < row.age


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where the next window begins. Every row up to id `last` that is older than `oldest_transaction` has been read.

    `oldest_transaction` is the id of the oldest one that was running just before the shard's first row was looked up.
    `generation` counts how often the read-ahead had been discarded by then. The position is used until `until`.
    """

    last: int
    oldest_transaction: str
    generation: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The state that the next read depends on. `left_out`: topics, keys or rows are held; `heavy`: rows are large."""

    now: float
    generation: int
    rows: int
    left_out: bool = False
    heavy: bool = False


@dataclass(frozen=True, slots=True)
class ByBuckets:
    """Read the head of each bucket, at most `each` rows of it. `fair`: between windows, for quiet buckets."""

    each: int
    fair: bool = False


@dataclass(frozen=True, slots=True)
class FromHead:
    """Look up the oldest transaction, then the shard's first row, and read the window that begins there."""


@dataclass(frozen=True, slots=True)
class Window:
    """Read on after a position, as far as rows are older than its oldest transaction."""

    position: Position


class ScanPlan:
    """Plans the reads of one shard. Without input or output; the time is passed in.

    | windows allowed, light rows, nothing left out, not resting | backlog | fair read due | position usable | next |
    | --- | --- | --- | --- | --- |
    | no | | | | `ByBuckets` |
    | yes | no | | | `ByBuckets` |
    | yes | yes | yes | | `ByBuckets`, fair |
    | yes | yes | no | no | `FromHead` |
    | yes | yes | no | yes | `Window` |
    """

    def __init__(self, buckets: int, *, windows: bool, shards: int = 1, by_id: bool = False) -> None:
        """`windows`: the table has our index, and settled rows leave it. `by_id`: rows come by id over all buckets."""
        self._buckets, self._windows, self._by_id = buckets, windows, by_id
        self._backlog = False
        self._fair_at = self._rest_until = 0.0
        self._position: Position | None = None
        # Ids per row of this shard: other shards' rows and rolled-back rows have ids too.
        self._ids_per_row = float(shards)
        # How many times an equal share one bucket may give in a read by buckets.
        self._share = 1.25

    def next(self, observed: Observed) -> ByBuckets | FromHead | Window:
        """Return what to read."""
        resting = observed.now < self._rest_until
        if not self._windows or observed.heavy or observed.left_out or not self._backlog or resting:
            return ByBuckets(self.each(observed.rows))
        if observed.now >= self._fair_at:
            return ByBuckets(max(1, min(_FAIR_ROWS, math.ceil(observed.rows / self._buckets))), fair=True)
        position = self._position
        if position is not None and position.generation == observed.generation and observed.now < position.until:
            return Window(position)
        return FromHead()

    def each(self, rows: int) -> int:
        """Return how many rows one bucket may give: about an equal share if all have rows, more if few do.

        In a read by id every bucket is asked for the same number, and rows beyond the wanted ones are read in vain.
        """
        if self._by_id:
            return max(1, min(rows, math.ceil(rows * _BY_ID_SHARE / self._buckets)))
        return max(1, min(rows, math.ceil(rows * self._share / self._buckets)))

    def width(self, rows: int) -> int:
        """Return the number of ids among which about `rows` rows of the shard are expected."""
        return max(1, int(_AIM * rows * self._ids_per_row))

    def learn_share(self, found: int, asked: int, rows: int) -> None:
        """Learn from a read by buckets: the rows that it found and wanted, and the buckets that were asked."""
        if found < 0.75 * rows:
            # All buckets together gave too few rows: each may give more.
            self._share = min(2.0 * self._share, 2.0 * self._buckets)
        elif asked < 0.75 * self._buckets:
            self._share = max(0.5 * self._share, 1.25)

    def read_by_buckets(self, found: int, plan: ByBuckets, observed: Observed) -> None:
        """Note how many rows a read by buckets found."""
        # A fair read asks for few rows, so only an empty one shows that the backlog is gone.
        self._backlog = found > 0 if plan.fair else found >= observed.rows
        self._fair_at = observed.now + _FAIR_SECONDS

    def begin(self, last: int, oldest_transaction: str, observed: Observed) -> Position:
        """Start windows after this id, which is just before the shard's first row. Return the position."""
        until = observed.now + _POSITION_SECONDS
        self._position = Position(
            last=last, oldest_transaction=oldest_transaction, generation=observed.generation, until=until
        )
        return self._position

    def read_window(self, last: int) -> None:
        """Note that every row up to this id was read."""
        if self._position is not None:
            self._position = replace(self._position, last=last)

    def cut_off(self, found: int, observed: Observed) -> None:
        """Note that a window was cut off at a row that is too new, after `found` rows."""
        self._position = None
        if 2 * found < observed.rows:
            # A transaction has been open for long: windows would give hardly any rows for now.
            self._rest_until = observed.now + _FAIR_SECONDS

    def learn_width(self, rows: int, ids: int) -> None:
        """Learn how many rows of the shard a window of `ids` ids had."""
        most = _MAX_GROWTH * self._ids_per_row
        self._ids_per_row = max(1.0, min(ids / rows if rows else most, most))

    def end(self) -> None:
        """Drop the position: there are no rows after it, or keys are blocked."""
        self._position = None

    def idle(self) -> None:
        """Note that nothing is pending."""
        self._backlog = False
        self.end()
