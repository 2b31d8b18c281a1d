"""The at-least-once protocol of one shard, mark-purge/reset, without any input or output: a generator of effects.

For readers that are not `read_committed`: of a key they see R0 R1 R1 R2, never R0 R1 R2 R0.

1. **Recover** as the exactly-once protocol does: fence, look at the term, settle the last progress record.
2. **Mark**: the oldest rows that are not ours become ours, under the term, with the shard's leader id. What is marked
   and not purged is bounded by rows and by bytes.
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

# A key with so large a part of the rows or bytes that may be marked has enough of them.
_HOT_SHARE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many rows a shard may have sent and not purged, and how many rows and bytes marked and not purged."""

    in_flight_rows: int
    window_rows: int
    window_bytes: int = 32_000_000

    @classmethod
    def of(cls, limits: Limits) -> "Bounds":
        """Return the bounds: enough is marked for waves of many keys, and for what is in flight besides."""
        rows = limits.in_flight_rows
        return cls(in_flight_rows=rows, window_rows=4 * rows + limits.mark_rows, window_bytes=2 * limits.batch_bytes)


def protocol(me: ShardIdentity, rules: Rules, progress: ProgressBook, bounds: Bounds) -> Steps:
    """Yield what has to be done, for as long as there are rows to mark."""
    waves = _Waves(me, rules, progress, board=Scoreboard(bounds.in_flight_rows))
    yield from waves.recover()
    yield Recovered()
    many, much = max(1, bounds.window_rows // _HOT_SHARE), max(1, bounds.window_bytes // _HOT_SHARE)
    # Sent and committed; their purge is under way.
    purging: Sequence[Row] = ()
    failures = waves.failures
    while True:
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
            # What was sent is purged, and all that is marked is marked anew.
            waves.mark_anew()
            purging = ()
            continue
        if batch is not NOTHING_YET:
            waves.board.add(batch.rows)
            failures = batch.failures
        if purging:
            # Then all keys have their turn: a wave costs about the same, however many rows it has.
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
    """Carries waves. What a wave could not send does not keep the rest of it from being committed."""

    board: Scoreboard = field(kw_only=True)
    # Rows of the last wave that the client did not take or deliver, the transaction being sound.
    unsent: list[Row] = field(default_factory=list)

    def mark_anew(self) -> None:
        """Begin another scoreboard: rows that were marked are marked anew."""
        self.board = Scoreboard(self.board.most_in_flight)

    def carry(self, batch: Batch) -> Generator[Effect, Any, bool]:
        self.unsent = []
        return (yield from super().carry(batch))

    def _behind(self) -> Iterable[Row]:
        return self.board.waiting

    def _spared(self, rows: Rows, faults: Sequence[Fault]) -> Rows | None:
        if any(fault.passing or fault.doubtful for fault in faults):
            # The broker has refused them: the transaction cannot commit.
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
                kept.append(row._replace(plan=self.rules.condemned(row, dead(fault.kind, fault.why))))
        return RowList(kept)
