"""Which rows a shard reads next: the head of each bucket, or all its rows in a window of ids.

**Safety.** A read by buckets overtakes nothing: it begins at the head of each bucket and leaves out what is in flight.
A window is cut off at its first row that `may_read_behind` refuses. That rule alone keeps windows safe: whatever is
planned, no row is read that it refuses.

**Speed.** Windows visit each page of a backlog once, and step over nothing. Reads by buckets step over rows that were
settled and are not vacuumed yet; they serve tables without our index, large rows, and buckets that have few rows.
"""

import math
from dataclasses import dataclass, replace

# Below every id that is drawn, and the highest there is.
LOWEST, HIGHEST = -(2**63), 2**63 - 1
# A position is given up after a while: rows that were committed late among those already met wait for it. And within
# days, a busy server wraps its transaction ids, and new rows look old.
_POSITION_SECONDS = 10.0
# During a backlog, a read by buckets this often, with few rows of each: a quiet bucket does not wait for older rows
# of the others. And how long windows rest once they gave little.
_FAIR_SECONDS, _FAIR_ROWS = 0.5, 64
# Of an equal part, what one bucket may give in a read by id: a bucket with all rows gives an eighth of a read or more.
_BY_ID_SHARE = 4
# A window aims at a little less than a full read: rows beyond it are read again. It grows by this factor at most.
_AIM, _MOST_GROWTH = 0.95, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The moment before the shard's first row was looked up: what windows go on from.

    `age` is that of the oldest transaction that was running, prepared ones included; `generation` says how often rows
    had gone back to the table. Ages count transactions: how many have begun since.
    """

    age: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBehind:
    """A row that a window found behind those that were met before.

    `age` is that of the transaction or savepoint that wrote it, by the same count as the horizon's. `generation` and
    `left_out` are the read's: how often rows had gone back, and whether topics were held.
    """

    age: int
    generation: int
    left_out: bool = False


def may_read_behind(row: RowBehind, horizon: Horizon) -> bool:
    """Whether a row may be read behind those that were met before: it overtakes none that it has to follow.

    1. It was written by a transaction that had ended before the horizon: one that began before every transaction that
       ran then. So it was committed when the shard's first row was looked up, and so was every row that it has to
       follow. All of those have been met, or come in this very window, which goes by id.
    2. No row has gone back to the table since: else one that was met is not on its way any more.
    3. No topic is held: else rows were left out that come back among those already met.

    A savepoint begins after its transaction: as long as that one runs, the horizon is older than both. Ages are counted
    modulo 2³², and a horizon lives for seconds: one whose age is negative is not believed, and a row that was frozen
    long ago may look new, which costs a read from the head.
    """
    same = row.generation == horizon.generation and not row.left_out
    return same and 0 <= horizon.age < row.age


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where the next window begins. Every row up to `last` that was committed before `horizon` has been met.

    `horizon` is the oldest transaction that was running before the shard's first row was looked up, `generation` how
    often rows had gone back to the table by then.
    """

    last: int
    horizon: str
    generation: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the next read depends on. `left_out`: topics are held; `heavy`: rows are large."""

    now: float
    generation: int
    rows: int
    left_out: bool = False
    heavy: bool = False


@dataclass(frozen=True, slots=True)
class ByBuckets:
    """Read the head of each bucket, at most `each` rows of it. `fair`: in the midst of a backlog."""

    each: int
    fair: bool = False


@dataclass(frozen=True, slots=True)
class FromHead:
    """Look up the horizon, then the shard's first row, and read the window that begins there."""


@dataclass(frozen=True, slots=True)
class Window:
    """Read on behind a position, as far as rows are older than its horizon."""

    position: Position


class ScanPlan:
    """Plans the reads of one shard. Looks at no clock and no table.

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
        # Other shards' rows, and rows that were rolled back, have ids too.
        self._ids_per_row = float(shards)
        # Of an equal part, what one bucket may give in a read by buckets.
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
        """Return how many rows one bucket may give: about an equal part where all have many, all where one has.

        By id, every bucket is asked, and what is behind the last row of one that has more is asked for in vain.
        """
        if self._by_id:
            return max(1, min(rows, math.ceil(rows * _BY_ID_SHARE / self._buckets)))
        return max(1, min(rows, math.ceil(rows * self._share / self._buckets)))

    def width(self, rows: int) -> int:
        """Return among how many ids there should be so many rows of the shard."""
        return max(1, int(_AIM * rows * self._ids_per_row))

    def learn_share(self, found: int, asked: int, rows: int) -> None:
        """Take in how many rows a read by buckets found, in how many buckets, and how many it wanted."""
        if found < 0.75 * rows:
            # All buckets together gave too few: each may give more.
            self._share = min(2.0 * self._share, 2.0 * self._buckets)
        elif asked < 0.75 * self._buckets:
            self._share = max(0.5 * self._share, 1.25)

    def read_by_buckets(self, found: int, plan: ByBuckets, observed: Observed) -> None:
        """Take in that a read by buckets found so many rows."""
        # A fair read asks for less than there is, and says nothing about the backlog unless it found nothing.
        self._backlog = found > 0 if plan.fair else found >= observed.rows
        self._fair_at = observed.now + _FAIR_SECONDS

    def begin(self, last: int, horizon: str, observed: Observed) -> Position:
        """Take in that the shard's first row is behind this id, and return the position to read from."""
        until = observed.now + _POSITION_SECONDS
        self._position = Position(last=last, horizon=horizon, generation=observed.generation, until=until)
        return self._position

    def read_window(self, last: int) -> None:
        """Take in that every row up to this id was met."""
        if self._position is not None:
            self._position = replace(self._position, last=last)

    def cut_off(self, found: int, observed: Observed) -> None:
        """Take in that a window ended at a row that is not old, after so many others."""
        self._position = None
        if 2 * found < observed.rows:
            # Somebody's transaction has been open for long: windows would give next to nothing.
            self._rest_until = observed.now + _FAIR_SECONDS

    def learn_width(self, rows: int, ids: int) -> None:
        """Take in that so many rows of the shard lay among so many ids."""
        most = _MOST_GROWTH * self._ids_per_row
        self._ids_per_row = max(1.0, min(ids / rows if rows else most, most))

    def end(self) -> None:
        """Nothing is left behind the position, or keys are blocked."""
        self._position = None

    def idle(self) -> None:
        """Nothing is pending."""
        self._backlog = False
        self.end()
