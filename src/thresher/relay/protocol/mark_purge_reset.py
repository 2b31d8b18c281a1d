"""The at-least-once protocol of one shard, mark-purge/reset, without any input or output: a generator of effects.

For readers with `isolation.level=read_uncommitted`: within a key they may see R0 R1 R1 R2, never R0 R1 R2 R0.

1. **Recover** as the exactly-once protocol does: fence, check the term, settle the last progress record.
2. **Mark** the oldest rows without our mark with the shard's leader id, under the term. The rows that are marked and
   not purged are bounded in number and in bytes.
3. **Wave**: send one row of each key that has none in flight, as one transaction with a progress record. So the
   broker's epoch refuses records that a stopped predecessor still has in its client's queue.
4. **Purge** the rows of a committed progress record, by the leader id under which they were marked. Only when the purge
   has committed, the barrier of their keys is lowered. If rows are missing, another process is at work: the attempt
   ends.
5. A row that the client did not take, or did not deliver, stays marked and is sent again before later rows of its key;
   the rest of its wave is committed. If the client requires an abort, or the commit is not certain, the shard recovers,
   and marks all rows again under a **new leader id**. Refused rows are then tried by halves, as in the exactly-once
   protocol.
6. **Reset** at the end: remove the marks of rows that were not sent.

A crash between any two effects loses nothing, and a duplicate directly follows its original within its key:
`tests/property/test_mark_purge_reset_property.py` tries all of them against a model.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from thresher.delivery.batch import NOTHING_YET, Batch
from thresher.delivery.carrier import Carrier, ShardIdentity, Steps
from thresher.delivery.effects import AwaitSettled, CloseAhead, Effect, Fault, OpenAhead, Recovered, Reset, Take
from thresher.delivery.fate import dead
from thresher.delivery.progress import ProgressBook
from thresher.delivery.row import Row, RowList, Rows
from thresher.delivery.rules import Rules
from thresher.relay.protocol.scoreboard import Scoreboard
from thresher.relay.settings import Limits

# A key is hot if it has at least 1/16 of the rows or bytes that may be marked: no more of its rows are marked then.
_HOT_SHARE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of a shard: rows in flight (sent, not purged), and rows and bytes that are marked and not purged."""

    in_flight_rows: int
    window_rows: int
    window_bytes: int = 32_000_000

    @classmethod
    def of(cls, limits: Limits) -> "Bounds":
        """Return the bounds: enough rows are marked for waves of many keys while others are in flight."""
        rows = limits.in_flight_rows
        return cls(in_flight_rows=rows, window_rows=4 * rows + limits.mark_rows, window_bytes=2 * limits.batch_bytes)


def protocol(me: ShardIdentity, rules: Rules, progress: ProgressBook, bounds: Bounds) -> Steps:
    """Yield the effects of one attempt, until `Take` answers None."""
    waves = _Waves(me, rules, progress, board=Scoreboard(bounds.in_flight_rows))
    yield from waves.recover()
    yield from waves.gate.go_on((yield Recovered()))
    many, much = max(1, bounds.window_rows // _HOT_SHARE), max(1, bounds.window_bytes // _HOT_SHARE)
    # Rows that were sent and committed, and whose purge is under way.
    purging: Sequence[Row] = ()
    failures = waves.failures
    while True:
        yield from waves.gate.tend()
        hot = tuple(waves.board.hot(many, much))
        batch: Any = yield Take(hot=hot)
        if batch is NOTHING_YET and not waves.board.busy:
            if (yield OpenAhead()) is False:
                yield from waves.start_over()
                waves.mark_anew()
                continue
            batch = yield Take(wait=True, hot=hot)
        if batch is None:
            break
        if batch is not NOTHING_YET and batch.failing is not None:
            yield from waves.wait_for_transform(batch.failing)
            # Rows that were sent are purged by now. All others are marked again.
            waves.mark_anew()
            purging = ()
            continue
        if batch is not NOTHING_YET:
            waves.board.add(batch.rows)
            failures = batch.failures
        if purging:
            # Waited for, so that every key can be in the next wave: a wave's cost hardly depends on its rows.
            yield AwaitSettled()
            waves.board.purged(purging)
            purging = ()
        wave = waves.board.wave()
        if not wave:
            continue
        if (yield from waves.carry(Batch(rows=RowList(wave), failures=failures))):
            waves.mark_anew()
            continue
        again = {row.id for row in waves.unsent}
        purging = [row for row in wave if row.id not in again]
        waves.board.again(waves.unsent)
    yield CloseAhead()
    yield AwaitSettled()
    yield Reset(tuple(row.id for row in waves.board.waiting))


@dataclass
class _Waves(Carrier):
    """Publishes waves. If single rows of a wave cannot be sent, the rest of it is still committed."""

    board: Scoreboard = field(kw_only=True)
    # Rows of the last wave that the client did not take or deliver, although the transaction could commit.
    unsent: list[Row] = field(default_factory=list)

    def mark_anew(self) -> None:
        """Start with an empty scoreboard: all rows are marked again."""
        self.board = Scoreboard(self.board.most_in_flight)

    def carry(self, batch: Batch) -> Generator[Effect, Any, bool]:
        self.unsent = []
        return (yield from super().carry(batch))

    def _behind(self) -> Iterable[Row]:
        return self.board.waiting

    def _spared(self, rows: Rows, faults: Sequence[Fault]) -> Rows | None:
        if any(fault.passing or fault.doubtful for fault in faults):
            # The broker has refused these records, so the transaction cannot commit.
            return None
        named = {fault.place: fault for fault in faults if fault.place is not None and fault.topic is None}
        if len(named) < len({(fault.place, fault.topic) for fault in faults}):
            return None
        kept: list[Row] = []
        for place, row in enumerate(rows):
            fault = named.get(place)
            if fault is None:
                kept.append(row)
            elif fault.kind is None:
                self.unsent.append(row)
            else:
                kept.append(row._replace(plan=self.rules.dead_fate(row, dead(fault.kind, fault.why))))
        return RowList(kept)
