"""Carries rows to their fates: what both guarantees, and every pipeline that publishes, have in common.

1. **Recover**: the control row's term must be ours; `Init` fences the last owner and ends its transaction; our claim
   to the shard must count (`claims`); the term must still be ours, or we leave and never init again; then the committed
   progress is read and settled, all of its horizon if the database is not the incarnation it speaks of.
2. **Carry** a batch: `Begin`, `Produce`, `Flush`; only when nothing failed, `WriteProgress`; `Commit` only once the
   settling of the transaction before is durable; then `Settle`.
   An open transaction waits for a settling a few seconds at most: readers of its partitions wait with it. Then it is
   abandoned, and its rows are read anew once the settling is durable.
3. After a rejection the producer is not used again: recover as at the start, and read anew. Then the topic that is not
   there is left out, the row that was named is set aside, or the rows are tried by halves: only one that fails alone is
   poison.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from thresher.delivery.batch import Batch, FailingTransform
from thresher.delivery.effects import (
    Abandon,
    AwaitSettled,
    Begin,
    Commit,
    DiscardReadAhead,
    Effect,
    Fault,
    Flush,
    Lift,
    Produce,
    ReadProgress,
    ReportRejected,
    Settle,
    Survey,
    WaitForTransform,
    WriteProgress,
)
from thresher.delivery.fate import Dead, Kind, dead
from thresher.delivery.ownership import Ownership
from thresher.delivery.progress import ProgressBook, ProgressRecord
from thresher.delivery.row import Record, Row, RowList, Rows
from thresher.delivery.rules import Rules
from thresher.delivery.waiting.gate import Gate
from thresher.kafka.problem import BrokerLost

Steps = Generator[Effect, Any, None]

# So often in a row the shard recovers by itself.
_MOST_STRIKES = 4
# An open transaction waits so long for the settling of the one before it. It may have been opened ahead, and flushing
# takes its time: all that together is less than the broker's transaction time-out.
_OPEN_SECONDS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIdentity:
    """Which shard, under which term, of which outbox."""

    outbox_id: str
    term: str
    shard: int


@dataclass
class Carrier:
    """What both guarantees have in common: recovery, and carrying rows to their fates."""

    me: ShardIdentity
    rules: Rules
    progress: ProgressBook
    number: int = 0
    # Rows in a row that transforms failed on, by the last progress record that recovery read.
    failures: int = 0
    # Transactions that were rejected on the way to finding poison; those in a row that were nobody's fault.
    rejections: int = 0
    strikes: int = 0
    ownership: Ownership = field(init=False)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self.ownership = Ownership(self.me.outbox_id, self.me.term)
        self.gate = Gate(self.rules, self.ownership)

    def recover(self) -> Steps:
        """Fence the last owner of the shard, see that it is still ours, and settle what was published."""
        control = yield from self.ownership.take()
        self.progress.opened(control)
        records: list[ProgressRecord] = yield ReadProgress()
        self.progress.require_ours(records)
        horizon: Iterable[ProgressRecord] = records
        if self.progress.wants_horizon(records):
            # A restart may have taken more than the last settling back, of any layout.
            horizon = yield ReadProgress(whole=True)
        for record in horizon:
            self.progress.require_ours([record])
            yield Settle(record, recovering=True)
            yield AwaitSettled()
        if records:
            self.number, self.failures = records[-1].number, records[-1].failures
        else:
            # Our name on the partition: another outbox finds it taken from the start.
            first = self.progress.record(0, RowList(), 0)
            if (yield Begin()) is False or not (yield WriteProgress(first)) or not (yield Commit()):
                raise BrokerLost("the first progress record may not have been committed")

    def start_over(self) -> Steps:
        """Give up a producer that failed while it carried nothing."""
        self._count_strike(())
        yield from self.recover()
        yield DiscardReadAhead()

    def wait_for_transform(self, failing: FailingTransform) -> Steps:
        """Let rows that wait for a transform go back to the table, and read anew after a while."""
        yield AwaitSettled()
        yield WaitForTransform(failing)
        yield DiscardReadAhead()

    def carry(self, batch: Batch) -> Generator[Effect, Any, bool]:
        """Bring the rows of a batch to their fates, or back to the table; return whether read-ahead is discarded."""
        self.gate.begin()
        rest = self._judged(batch.rows)
        # Rows are left for later: they went back to the table, or wait in it behind one that blocks their key.
        left = len(rest) < len(batch.rows)
        while rest:
            before = len(rest)
            rest = yield from self.gate.let_through(rest, self._behind)
            left |= len(rest) < before
            rows, rest = self._cut(rest)
            if not rows:
                continue
            rows = self._compacted(self.gate.placed(rows))
            if (yield Begin()) is False:
                yield from self._rejected(rows, ())
                return True
            faults: list[Fault] = yield Produce(rows)
            progress = self.progress.record(self.number + 1, rows, batch.failures)
            faults = faults + (yield Flush(progress))
            sent = rows
            if faults:
                spared = self._spared(rows, faults)
                if spared is None:
                    yield from self._rejected(rows, faults)
                    return True
                sent = spared
                progress = self.progress.record(self.number + 1, sent, batch.failures)
            if not (yield from self._concluded(rows, sent, progress, faults)):
                return True
            left |= sent.has_blocking
        if left:
            # They must not be overtaken by what was read behind them.
            yield AwaitSettled()
            yield DiscardReadAhead()
        return left

    def _concluded(
        self, rows: Rows, sent: Rows, progress: ProgressRecord, faults: Sequence[Fault]
    ) -> Generator[Effect, Any, bool]:
        """Commit a transaction, of whose rows these were sent, and settle them; else start over and return False."""
        if not (yield WriteProgress(progress, despite=bool(faults))):
            yield from self._rejected(rows, faults)
            return False
        if not (yield AwaitSettled(within_seconds=_OPEN_SECONDS)):
            yield from self._abandoned()
            return False
        yield from self._delivered(sent)
        if not (yield Commit()):
            yield from self._rejected(sent, ())
            return False
        self.number += 1
        self.strikes = 0
        yield Settle(progress)
        return True

    def _abandoned(self) -> Steps:
        """Keep no transaction open behind a settling that hangs: start over when that has ended."""
        yield Abandon()
        yield AwaitSettled()
        yield from self.recover()
        yield DiscardReadAhead()

    def _behind(self) -> Iterable[Row]:
        """Return rows that were read for later batches, as far as they are known."""
        return ()

    def _spared(self, _rows: Rows, _faults: Sequence[Fault]) -> Rows | None:
        """Return what of a transaction with faults may be committed nevertheless; None if it must not be."""
        return None

    def _compacted(self, rows: Rows) -> Rows:
        """Return a transaction's rows without records that newer ones among them make superfluous: all of them."""
        return rows

    def _cut(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return what one transaction may carry, and the rest: suspects go by themselves, half of a group at most."""
        fit = self.progress.fitting(rows)
        if self.gate.rows:
            places = [(place, row) for place, row in enumerate(rows[:fit]) if isinstance(row.plan, Record)]
            count = self.gate.rows.fitting((row.id, row.create_time) for _, row in places)
            if count < len(places):
                fit = places[count][0]
        return rows[:fit], rows[fit:]

    def _judged(self, rows: Rows) -> Rows:
        """Apply the policy to rows that are dead already, and the sentence to those that were found out."""
        if not self.gate.rows and not rows.has_dead:
            return rows
        judged = []
        for row in rows:
            sentence = self.gate.rows.sentence((row.id, row.create_time))
            if sentence is not None:
                judged.append(row._replace(plan=sentence))
            elif isinstance(row.plan, Dead):
                judged.append(row._replace(plan=self.rules.condemned(row, row.plan)))
            else:
                judged.append(row)
        return RowList(judged).blocked_left_out()

    def _rejected(self, rows: Rows, faults: Sequence[Fault]) -> Steps:
        """Start over, since a producer that failed is not used again, and remember what the rejection tells."""
        sent = [place for place, _ in rows.records()]
        yield ReportRejected(
            frozenset(fault.topic for fault in faults if fault.topic is not None) or rows.topics,
            len(sent),
            faults[0].why if faults else "it could not be opened, or whether it was committed is not known",
        )
        self._count_strike(faults)
        yield from self.recover()
        self.rejections += 1
        # What time may mend tells nothing about a row.
        telling = [fault for fault in faults if fault.kind is not None]
        lost = [fault for fault in faults if fault.topic is not None]
        named = {fault.place: fault for fault in telling if fault.place is not None}
        refused = next((fault for fault in telling if fault.passing), None)
        now = (yield Survey(frozenset())).now if lost or refused is not None else 0.0
        if lost:
            for fault in lost:
                self.gate.topics.refused(fault.topic or "", fault.kind, fault.why, now)
        elif named or (telling and len(sent) == 1):
            for place, fault in (named or {sent[0]: refused or telling[0]}).items():
                if fault.doubtful and len(sent) > 1:
                    self.gate.rows.accuse([(rows[place].id, rows[place].create_time)])
                else:
                    yield from self._found_out(rows[place], fault, now)
        elif telling:
            # Only a row that has a time of its own can be refused for it, though others of its batch are named as well.
            suspects = [place for place in sent if refused is None or _has_time(rows[place])] or sent
            self.gate.rows.accuse((rows[place].id, rows[place].create_time) for place in suspects)
        yield DiscardReadAhead()

    def _found_out(self, row: Row, fault: Fault, now: float) -> Steps:
        """Have a row that fails alone wait, if its fault may pass and its grace is not over; else condemn it."""
        key = (row.id, row.create_time)
        topic = row.plan.topic if isinstance(row.plan, Record) else row.topic
        if fault.passing and self.gate.rows.wait(key, topic, fault.why, now, tried=True):
            return
        why = self.rules.in_vain(fault.why) if fault.passing else fault.why
        fate = dead(fault.kind or Kind.REJECTED, why, self.rejections)
        self.gate.rows.condemn(key, self.rules.condemned(row, fate))
        if fault.passing and not self.gate.rows.waits_for(topic):
            yield Lift(topic)

    def _count_strike(self, faults: Sequence[Fault]) -> None:
        """Give up after a few transactions in a row that came to nothing without anybody's fault."""
        if any(fault.kind is not None or fault.topic is not None for fault in faults):
            return
        self.strikes += 1
        if self.strikes > _MOST_STRIKES:
            # Whoever starts the shard again waits before, and longer each time.
            why = faults[0].why if faults else "whether it was committed is not known"
            raise BrokerLost(f"{self.strikes} transactions in a row came to nothing: {why}")

    def _delivered(self, rows: Rows) -> Steps:
        """Forget what these rows have disproved."""
        lifted = set(self.gate.topics.delivered(rows.topics))
        if self.gate.rows:
            for row in rows:
                key = (row.id, row.create_time)
                state = self.gate.rows.waiting(key)
                self.gate.rows.clear(key)
                if state is not None and not self.gate.rows.waits_for(state.topic):
                    lifted.add(state.topic)
        for topic in sorted(lifted):
            yield Lift(topic)
        if not self.gate.rows:
            self.rejections = 0


def _has_time(row: Row) -> bool:
    """Whether a row is sent with a timestamp of its own."""
    return isinstance(row.plan, Record) and row.plan.timestamp > 0
