"""Recovers a shard and publishes its batches. Both guarantees, and every pipeline that publishes, share these steps.

1. **Recover**: the control row must have our term. `Init` fences the last owner and ends its transaction. The control
   row must still have our term, or the attempt ends and never calls `Init` again. Our claim to the shard must count
   (`claims`). Then the last committed progress record is read and settled; if the database was restarted, failed over
   or restored since that record, all records within the horizon are.
2. **Carry** a batch: `Begin`, `Produce`, `Flush`; `WriteProgress` only if nothing failed; `Commit` only once the
   previous transaction's settling is durable; then `Settle`.
   An open transaction waits at most a few seconds for that settling, because readers of its partitions wait with it.
   Then it is aborted, and its rows are read again once the settling is durable.
3. After a rejected transaction the producer is discarded: the shard recovers as at the start, and reads again. A
   missing topic is then left out of reads, and a row that the broker named is set aside as dead. If no row was
   named, the rows are tried by halves: only a row that fails alone is poison.
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

# After more consecutive transactions that failed for no known reason, the attempt ends.
_MAX_STRIKES = 4
# How long an open transaction waits for the previous one's settling. The transaction may have been opened ahead of its
# rows, and flushing takes time: the sum must stay below the broker's transaction time-out.
_OPEN_SECONDS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIdentity:
    """Which shard, under which term, of which outbox."""

    outbox_id: str
    term: str
    shard: int


@dataclass
class Carrier:
    """Recovery of a shard, and publishing of its batches, as generators of effects. Subclasses adapt single steps."""

    me: ShardIdentity
    rules: Rules
    progress: ProgressBook
    number: int = 0
    # Consecutive rows on which transforms failed, by the last progress record that recovery read.
    failures: int = 0
    # Transactions rejected while a poison row is being looked for.
    rejections: int = 0
    # Consecutive transactions that failed without a row or a topic at fault.
    strikes: int = 0
    ownership: Ownership = field(init=False)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self.ownership = Ownership(self.me.outbox_id, self.me.term)
        self.gate = Gate(self.rules, self.ownership)

    def recover(self) -> Steps:
        """Fence the last owner of the shard, check that the shard is still ours, and settle what was published."""
        control = yield from self.ownership.take()
        self.progress.opened(control)
        records: list[ProgressRecord] = yield ReadProgress()
        self.progress.require_ours(records)
        horizon: Iterable[ProgressRecord] = records
        if self.progress.wants_horizon(records):
            # The database may have lost more than the last settling, and of any shard that ever had our rows.
            horizon = yield ReadProgress(whole=True)
        for record in horizon:
            self.progress.require_ours([record])
            yield Settle(record, recovering=True)
            yield AwaitSettled()
        if records:
            self.number, self.failures = records[-1].number, records[-1].failures
        else:
            # An empty record marks the partition as ours, so that another outbox finds it taken.
            first = self.progress.record(0, RowList(), 0)
            if (yield Begin()) is False or not (yield WriteProgress(first)) or not (yield Commit()):
                raise BrokerLost("the first progress record may not have been committed")

    def start_over(self) -> Steps:
        """Replace a producer that failed while it had no rows, and recover."""
        self._count_strike(())
        yield from self.recover()
        yield DiscardReadAhead()

    def wait_for_transform(self, failing: FailingTransform) -> Steps:
        """Leave rows whose transform keeps failing in the table, and read them again after a pause."""
        yield AwaitSettled()
        yield WaitForTransform(failing)
        yield DiscardReadAhead()

    def carry(self, batch: Batch) -> Generator[Effect, Any, bool]:
        """Publish and settle the rows of a batch; rows that cannot be sent now stay in the table.

        Return whether the read-ahead was discarded.
        """
        self.gate.begin()
        rest = self._judged(batch.rows)
        # Whether rows are left for later: they are held, or wait behind a dead row that blocks their key.
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
            # Rows that were read after them would overtake them.
            yield AwaitSettled()
            yield DiscardReadAhead()
        return left

    def _concluded(
        self, rows: Rows, sent: Rows, progress: ProgressRecord, faults: Sequence[Fault]
    ) -> Generator[Effect, Any, bool]:
        """Commit a transaction and settle the rows that it `sent`. If that fails, recover and return False."""
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
        """Abort a transaction that waits for a settling that hangs, and recover once the settling has ended."""
        yield Abandon()
        yield AwaitSettled()
        yield from self.recover()
        yield DiscardReadAhead()

    def _behind(self) -> Iterable[Row]:
        """Return the rows known to have been read for later batches. None are known here."""
        return ()

    def _spared(self, _rows: Rows, _faults: Sequence[Fault]) -> Rows | None:
        """Return the rows of a transaction with faults that may still be committed; None if it may not commit."""
        return None

    def _compacted(self, rows: Rows) -> Rows:
        """Return a transaction's rows with records filtered out that newer ones replace. Nothing is filtered here."""
        return rows

    def _cut(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the rows for one transaction, and the rest. Suspects go without others, half of a group at most."""
        fit = self.progress.fitting(rows)
        if self.gate.rows:
            places = [(place, row) for place, row in enumerate(rows[:fit]) if isinstance(row.plan, Record)]
            count = self.gate.rows.fitting((row.id, row.create_time) for _, row in places)
            if count < len(places):
                fit = places[count][0]
        if self.gate.pacing and fit and any(map(self.gate.pacing.alone, rows.topics)):
            fit = self._unmixed(rows, fit)
        return rows[:fit], rows[fit:]

    def _unmixed(self, rows: Rows, fit: int) -> int:
        """Return how many of the rows go into a transaction: none of a topic that is tried alone, or a few of it."""
        alone = self.gate.pacing.alone
        sent_to = (row.plan.topic if isinstance(row.plan, Record) else None for row in rows[:fit])
        tried = [topic if topic is not None and alone(topic) else None for topic in sent_to]
        others = next((place for place, topic in enumerate(tried) if topic != tried[0]), fit)
        return others if tried[0] is None else min(others, self.gate.pacing.most_rows(tried[0]))

    def _judged(self, rows: Rows) -> Rows:
        """Give dead rows the fate that the poison policy asks for, and poison rows the fate that was found."""
        if not self.gate.rows and not rows.has_dead:
            return rows
        judged = []
        for row in rows:
            dead_fate = self.gate.rows.dead_fate((row.id, row.create_time))
            if dead_fate is not None:
                judged.append(row._replace(plan=dead_fate))
            elif isinstance(row.plan, Dead):
                judged.append(row._replace(plan=self.rules.dead_fate(row, row.plan)))
            else:
                judged.append(row)
        return RowList(judged).blocked_left_out()

    def _rejected(self, rows: Rows, faults: Sequence[Fault]) -> Steps:
        """Recover with a new producer after a rejected transaction, and note which topics or rows are at fault."""
        sent = [place for place, _ in rows.records()]
        yield ReportRejected(
            frozenset(fault.topic for fault in faults if fault.topic is not None) or rows.topics,
            len(sent),
            faults[0].why if faults else "it could not be opened, or whether it was committed is not known",
        )
        self._count_strike(faults)
        yield from self.recover()
        self.rejections += 1
        # A fault without a kind may pass by itself, and says nothing about a row.
        telling = [fault for fault in faults if fault.kind is not None]
        lost = [fault for fault in faults if fault.topic is not None]
        named = {fault.place: fault for fault in telling if fault.place is not None}
        late = next((fault for fault in telling if fault.passing), None)
        now = (yield Survey(frozenset())).now if lost or telling else 0.0
        # Topics that refuse the present time: each try costs others a recovery, as that of a bad row does.
        narrow = frozenset(fault.refused_by for fault in lost if fault.refused_by is not None)
        refusing = _refusing(rows, telling) | narrow
        if telling or narrow:
            unnamed = 0 if named or lost else len(sent)
            self.gate.pacing.refused(refusing, now - self.gate.asked, now, rows=unnamed)
        if lost:
            for fault in lost:
                self.gate.topics.refused(fault.topic or "", fault.kind, fault.why, now)
        elif named or (telling and len(sent) == 1):
            for place, fault in (named or {sent[0]: late or telling[0]}).items():
                if fault.doubtful and len(sent) > 1:
                    self.gate.rows.suspect([(rows[place].id, rows[place].create_time)])
                else:
                    yield from self._failed_alone(rows[place], fault, now)
        elif telling:
            # The broker names every row of the batch, but only a row with its own timestamp can be refused for it.
            among = [place for place in sent if rows[place].sent_topic in refusing]
            suspects = [place for place in among if late is None or _has_time(rows[place])] or among or sent
            self.gate.rows.suspect((rows[place].id, rows[place].create_time) for place in suspects)
        yield DiscardReadAhead()

    def _failed_alone(self, row: Row, fault: Fault, now: float) -> Steps:
        """Let a row that is at fault wait if the fault may pass and its grace is not over; otherwise mark it dead."""
        key = (row.id, row.create_time)
        topic = row.sent_topic
        if fault.passing and self.gate.rows.wait(key, topic, fault.why, now, tried=True):
            return
        why = self.rules.grace_over_reason(fault.why) if fault.passing else fault.why
        fate = dead(fault.kind or Kind.REJECTED, why, self.rejections)
        self.gate.rows.mark_dead(key, self.rules.dead_fate(row, fate))
        if fault.passing and not self.gate.rows.waits_for(topic):
            yield Lift(topic)

    def _count_strike(self, faults: Sequence[Fault]) -> None:
        """End the attempt after a few consecutive transactions that failed without a row or a topic at fault."""
        if any(fault.kind is not None or fault.topic is not None for fault in faults):
            return
        self.strikes += 1
        if self.strikes > _MAX_STRIKES:
            # The supervisor starts the shard again after a pause that grows with each failure.
            why = faults[0].why if faults else "whether it was committed is not known"
            raise BrokerLost(f"{self.strikes} transactions in a row came to nothing: {why}")

    def _delivered(self, rows: Rows) -> Steps:
        """Forget the waits and suspicions about rows and topics that were delivered, and clear their alarms."""
        lifted = {*self.gate.topics.delivered(rows.topics), *self.gate.pacing.took(rows.topics)}
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


def _refusing(rows: Rows, faults: Iterable[Fault]) -> frozenset[str]:
    """Return the topics of which a broker refused a row, as far as is known; without the topics that are at fault."""
    of_rows = [fault for fault in faults if fault.topic is None]
    known = {
        fault.refused_by if fault.place is None else rows[fault.place].sent_topic for fault in of_rows
    }  # fmt: skip
    return rows.topics if None in known else frozenset(topic for topic in known if topic is not None)


def _has_time(row: Row) -> bool:
    """Whether a row is sent with a timestamp of its own."""
    return isinstance(row.plan, Record) and row.plan.timestamp > 0
