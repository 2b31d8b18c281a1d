"""The at-least-once protocol of one shard, mark-purge/reset, without any input or output: a generator of effects.

For readers that are not `read_committed`: of a key they see R0 R1 R1 R2, never R0 R1 R2 R0.

1. **Recover** as the exactly-once protocol does: fence, look at the term, settle the last progress record.
2. **Mark**: the oldest rows that are not ours become ours, under the term, with the shard's leader id.
3. **Wave**: one row of each key that has none in flight, in a transaction of its own with a progress record. So the
   broker's epoch keeps back what a stopped predecessor still has in its client's hands.
4. **Purge** what a committed record says was sent, by the leader id under which it was marked. Only when that has
   committed, the key's barrier lowers. Rows that are fewer than expected mean that somebody else is at work: stop.
5. A row that the client did not take, or says it did not deliver, stays marked and is sent again before its followers;
   the others of its wave are committed. When the client demands an abort, or whether it committed is not certain, the
   shard recovers, and marks everything anew under a **new leader id**; then what was refused is tried by halves, as in
   the exactly-once protocol.
6. **Reset** at the end: what is marked and was not sent loses its mark.

A crash between any two effects loses nothing; what it repeats directly follows its original within its key:
`tests/property/test_mark_purge_reset_property.py` tries all of them against a model.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from thresher.delivery.batch import NOTHING_YET, Batch
from thresher.delivery.carrier import Carrier, Rules, ShardIdentity, Steps
from thresher.delivery.effects import AwaitSettled, CloseAhead, Effect, Fault, OpenAhead, Recovered, Reset, Take
from thresher.delivery.fate import dead
from thresher.delivery.progress import ProgressBook
from thresher.delivery.row import Row, RowList, Rows
from thresher.kafka.problem import BrokerLost
from thresher.relay.protocol.scoreboard import Scoreboard
from thresher.relay.settings import Limits

# A key with so large a part of the rows that may be marked has enough of them.
_HOT_SHARE = 16
# So often in a row the shard recovers by itself.
_MOST_STRIKES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many rows a shard may have sent and not purged, and marked and not purged."""

    in_flight_rows: int
    window_rows: int

    @classmethod
    def of(cls, limits: Limits) -> "Bounds":
        """Return the bounds: enough is marked for waves of many keys, and for what is in flight besides."""
        rows = limits.in_flight_rows
        return cls(in_flight_rows=rows, window_rows=4 * rows + limits.mark_rows)


def protocol(me: ShardIdentity, rules: Rules, progress: ProgressBook, bounds: Bounds) -> Steps:
    """Yield what has to be done, for as long as there are rows to mark."""
    waves = _Waves(me, rules, progress)
    yield from waves.recover()
    yield Recovered()
    board = Scoreboard(bounds.in_flight_rows)
    many = max(1, bounds.window_rows // _HOT_SHARE)
    # Sent and committed; their purge is under way.
    purging: Sequence[Row] = ()
    failures = waves.failures
    while True:
        hot = tuple(board.hot(many))
        batch: Any = yield Take(hot=hot)
        if batch is NOTHING_YET and not board.busy:
            yield OpenAhead()
            batch = yield Take(wait=True, hot=hot)
        if batch is None:
            break
        if batch is not NOTHING_YET:
            board.add(batch.rows)
            failures = batch.failures
        if purging:
            # Then all keys have their turn: a wave costs about the same, however many rows it has.
            yield AwaitSettled()
            board.purged(purging)
            purging = ()
        wave = board.wave()
        if not wave:
            continue
        if (yield from waves.carry(Batch(rows=RowList(wave), failures=failures))):
            # Rows that were marked are marked anew.
            board = Scoreboard(bounds.in_flight_rows)
            continue
        again = {row.id for row in waves.unsent}
        purging = [row for row in wave if row.id not in again]
        board.again(waves.unsent)
    yield CloseAhead()
    yield AwaitSettled()
    yield Reset(tuple(row.id for row in board.waiting))


@dataclass
class _Waves(Carrier):
    """Carries waves. What a wave could not send does not keep the rest of it from being committed."""

    # Rows of the last wave that the client did not take or deliver, the transaction being sound.
    unsent: list[Row] = field(default_factory=list)
    # Waves in a row that came to nothing, and nobody's row was to blame.
    strikes: int = 0

    def carry(self, batch: Batch) -> Generator[Effect, Any, bool]:
        self.unsent = []
        over = yield from super().carry(batch)
        if not over:
            self.strikes = 0
        return over

    def _rejected(self, rows: Rows, faults: Sequence[Fault]) -> Steps:
        if all(fault.kind is None for fault in faults):
            self.strikes += 1
            if self.strikes > _MOST_STRIKES:
                # Whoever starts the shard again waits before, and longer each time.
                why = faults[0].why if faults else "whether it was committed is not known"
                raise BrokerLost(f"{self.strikes} transactions in a row came to nothing: {why}")
        yield from super()._rejected(rows, faults)

    def _spared(self, rows: Rows, faults: Sequence[Fault]) -> Rows | None:
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
                kept.append(row._replace(plan=self._condemned(row, dead(fault.kind, fault.why))))
        return RowList(kept)
