"""Carries rows to their fates: what both guarantees, and every pipeline that publishes, have in common.

1. **Recover**: the control row's term must be ours; `Init` fences the last owner and ends its transaction; the term
   must still be ours, or we leave and never init again; then the committed progress is read and settled, all of its
   horizon if the database is not the incarnation it speaks of.
2. **Carry** a batch: `Begin`, `Produce`, `Flush`; only when nothing failed, `WriteProgress`; `Commit` only once the
   settling of the transaction before is durable; then `Settle`.
3. After a rejection the producer is not used again: recover as at the start, and read anew. Then the topic that is not
   there is left out, the row that was named is set aside, or the rows are tried by halves: only one that fails alone is
   poison.
"""

import enum
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thresher.core.errors import Superseded
from thresher.delivery.batch import Batch
from thresher.delivery.effects import (
    AwaitSettled,
    Begin,
    Commit,
    Control,
    DiscardReadAhead,
    Effect,
    Fault,
    Flush,
    Hold,
    Init,
    Lift,
    Produce,
    ReadControl,
    ReadProgress,
    Settle,
    Survey,
    WriteProgress,
)
from thresher.delivery.fate import DEAD_KINDS, Dead, Kind, dead
from thresher.delivery.problem import Halted
from thresher.delivery.progress import ProgressBook, ProgressRecord
from thresher.delivery.row import Record, Row, RowList, Rows
from thresher.delivery.suspects import Suspects
from thresher.kafka.problem import BrokerLost
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus, Unavailable

Steps = Generator[Effect, Any, None]

# A topic that refused us is not tried again at once.
_DENIED_SECONDS = 1.0
# Rows of a topic that is held are looked at every few seconds.
_FORGOTTEN_SECONDS = 30.0


class Poison(enum.StrEnum):
    """What to do about a row that can never be sent."""

    DEAD_LETTER = "dead-letter"
    BLOCK_KEY = "block-key"
    HALT = "halt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the configuration leaves to choose."""

    poison: Poison = Poison.DEAD_LETTER
    grace_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIdentity:
    """Which shard, under which term, of which outbox."""

    outbox_id: str
    term: str
    shard: int


class _Missing(NamedTuple):
    """Why a topic cannot be written to. Without a kind, that says nothing about its rows: they wait, however long."""

    kind: Kind | None
    why: str


@dataclass
class Carrier:
    """What both guarantees have in common: recovery, and carrying rows to their fates."""

    me: ShardIdentity
    rules: Rules
    progress: ProgressBook
    number: int = 0
    # Rows in a row that transforms failed on, by the last progress record that recovery read.
    failures: int = 0
    # Topics that are not there for us, since when and when last seen so; those that only a try can tell of, until when.
    absent: dict[str, tuple[float, float]] = field(default_factory=dict)
    denied: dict[str, tuple[float, _Missing]] = field(default_factory=dict)
    # Rows that were found out to be poison and have not been settled as dead yet.
    condemned: dict[tuple[int, int], Dead] = field(default_factory=dict)
    # Rows of transactions that were rejected. And how many were rejected on the way.
    suspects: Suspects = field(default_factory=Suspects)
    rejections: int = 0

    def recover(self) -> Steps:
        """Fence the last owner of the shard, see that it is still ours, and settle what was published."""
        self._require_mine((yield ReadControl()))
        yield Init()
        control: Control = yield ReadControl()
        self._require_mine(control)
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
            yield Begin()
            first = self.progress.record(0, RowList(), 0)
            if not (yield WriteProgress(first)) or not (yield Commit()):
                raise BrokerLost("the first progress record may not have been committed")

    def carry(self, batch: Batch) -> Generator[Effect, Any, bool]:
        """Bring the rows of a batch to their fates, or back to the table; return whether read-ahead is discarded."""
        held: set[str] = set()
        rest = self._judged(batch.rows)
        # Rows are left for later: they went back to the table, or wait in it behind one that blocks their key.
        left = len(rest) < len(batch.rows)
        while rest:
            before = len(rest)
            rest = yield from self._surveyed(rest, held)
            left |= len(rest) < before
            rows, rest = self._cut(rest)
            if not rows:
                continue
            yield Begin()
            faults: list[Fault] = yield Produce(rows)
            progress = self.progress.record(self.number + 1, rows, batch.failures)
            faults = faults + (yield Flush(progress))
            spared: Rows | None = None
            if faults:
                spared = self._spared(rows, faults)
                if spared is None:
                    yield from self._rejected(rows, faults)
                    return True
                progress = self.progress.record(self.number + 1, spared, batch.failures)
            if not (yield WriteProgress(progress, despite=bool(faults))):
                yield from self._rejected(rows, faults)
                return True
            if spared is not None:
                rows = spared
            yield from self._delivered(rows)
            yield AwaitSettled()
            if not (yield Commit()):
                yield from self._rejected(rows, ())
                return True
            self.number += 1
            yield Settle(progress)
            left |= rows.has_blocking
        if left:
            # They must not be overtaken by what was read behind them.
            yield AwaitSettled()
            yield DiscardReadAhead()
        return left

    def _spared(self, _rows: Rows, _faults: Sequence[Fault]) -> Rows | None:
        """Return what of a transaction with faults may be committed nevertheless; None if it must not be."""
        return None

    def _cut(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return what one transaction may carry, and the rest: suspects go by themselves, half of a group at most."""
        fit = self.progress.fitting(rows)
        if self.suspects:
            places = [(place, row) for place, row in enumerate(rows[:fit]) if isinstance(row.plan, Record)]
            count = self.suspects.fitting((row.id, row.create_time) for _, row in places)
            if count < len(places):
                fit = places[count][0]
        return rows[:fit], rows[fit:]

    def _judged(self, rows: Rows) -> Rows:
        """Apply the policy to rows that are dead already, and the sentence to those that were found out."""
        condemned = self.condemned
        if not condemned and not rows.has_dead:
            return rows
        judged = []
        for row in rows:
            sentence = condemned.get((row.id, row.create_time))
            if sentence is not None:
                judged.append(row._replace(plan=sentence))
            elif isinstance(row.plan, Dead):
                judged.append(row._replace(plan=self._condemned(row, row.plan)))
            else:
                judged.append(row)
        return RowList(judged).blocked_left_out()

    def _surveyed(self, rows: Rows, held: set[str]) -> Generator[Effect, Any, Rows]:
        """Look at the topics; hold or condemn rows of those that are not there."""
        topics = rows.topics
        if not topics:
            return rows
        answer: Surveyed = yield Survey(topics)
        lost: dict[str, _Missing] = {}
        for topic, status in answer.topics.items():
            until, denial = self.denied.get(topic, (0.0, None))
            match status:
                case Unavailable(refusal=refusal, why=why):
                    lost[topic] = _Missing(DEAD_KINDS.get(refusal), why)
                case Available():
                    if denial is not None:
                        # Only a try will tell, and not at once again.
                        if answer.now < until:
                            lost[topic] = denial
                    elif topic in self.absent:
                        del self.absent[topic]
                        yield Lift(topic)
        if lost:
            rows = yield from self._miss(rows, lost, answer.now, held)
        return (yield from self._placed(rows, answer.topics))

    def _placed(self, rows: Rows, statuses: Mapping[str, TopicStatus]) -> Generator[Effect, Any, Rows]:
        """Set rows aside that ask for a partition that is not there."""
        if not rows.asks_for_partitions:
            return rows
        doubtful = {
            row.plan.topic for row in rows if isinstance(row.plan, Record) and _beyond(row.plan, statuses) is not None
        }
        if not doubtful:
            return rows
        # Partitions may have been added since we last looked.
        answer: Surveyed = yield Survey(frozenset(doubtful), fresh=True)
        placed = []
        for row in rows:
            plan = row.plan
            there = _beyond(plan, answer.topics) if isinstance(plan, Record) else None
            if isinstance(plan, Record) and there is not None:
                why = f"partition {plan.partition} of {plan.topic} is not there: it has {there}"
                placed.append(row._replace(plan=self._condemned(row, dead(Kind.NO_PARTITION, why))))
            else:
                placed.append(row)
        return RowList(placed).blocked_left_out()

    def _miss(
        self, rows: Rows, lost: Mapping[str, _Missing], now: float, held: set[str]
    ) -> Generator[Effect, Any, Rows]:
        """Hold the rows of lost topics, or condemn them when the grace is over."""
        grace = self.rules.grace_seconds
        expired: dict[str, Kind] = {}
        for topic, missing in lost.items():
            if missing.kind is None:
                self.absent[topic] = (now, now)
            elif now - self._missed(topic, now) >= grace:
                expired[topic] = missing.kind
        kept: list[Row] = []
        why = ""
        newly: set[str] = set()
        for row in rows:
            plan = row.plan
            if not isinstance(plan, Record) or plan.topic not in lost:
                kept.append(row)
            elif plan.topic in expired:
                reason = f"{lost[plan.topic].why}, for {grace:g} s"
                fate = dead(expired[plan.topic], reason, max(1, self.rejections))
                kept.append(row._replace(plan=self._condemned(row, fate)))
            else:
                newly.add(row.topic)
                why = lost[plan.topic].why
        if newly:
            held |= newly
            yield Hold(frozenset(newly), why, frozenset(lost) - expired.keys())
        return RowList([row for row in RowList(kept).blocked_left_out() if row.topic not in held])

    def _missed(self, topic: str, now: float) -> float:
        """Note that a topic is not there, and return since when; who was not looked for meanwhile gets a new grace."""
        since, last = self.absent.get(topic, (now, now))
        if now - last > max(_FORGOTTEN_SECONDS, self.rules.grace_seconds):
            since = now
        self.absent[topic] = (since, now)
        return since

    def _rejected(self, rows: Rows, faults: Sequence[Fault]) -> Steps:
        """Start over, since a producer that failed is not used again, and remember what the rejection tells."""
        yield from self.recover()
        self.rejections += 1
        sent = [place for place, _ in rows.records()]
        # What time may mend tells nothing about a row.
        telling = [(fault, fault.kind) for fault in faults if fault.kind is not None]
        lost = {fault.topic: _Missing(kind, fault.why) for fault, kind in telling if fault.topic is not None}
        named = {fault.place: (kind, fault.why) for fault, kind in telling if fault.place is not None}
        if lost:
            now = (yield Survey(frozenset())).now
            for topic, absence in lost.items():
                self._missed(topic, now)
                self.denied[topic] = (now + _DENIED_SECONDS, absence)
        elif named or (telling and len(sent) == 1):
            for place, (kind, why) in (named or {sent[0]: (telling[0][1], telling[0][0].why)}).items():
                row = rows[place]
                fate = dead(kind, why, self.rejections)
                self.condemned[row.id, row.create_time] = self._condemned(row, fate)
                self.suspects.clear((row.id, row.create_time))
        elif telling:
            self.suspects.accuse((rows[place].id, rows[place].create_time) for place in sent)
        yield DiscardReadAhead()

    def _delivered(self, rows: Rows) -> Steps:
        """Forget what these rows have disproved."""
        if self.suspects or self.condemned:
            for row in rows:
                self.suspects.clear((row.id, row.create_time))
                self.condemned.pop((row.id, row.create_time), None)
        if self.denied:
            for topic in rows.topics & set(self.denied):
                del self.denied[topic]
                if self.absent.pop(topic, None) is not None:
                    yield Lift(topic)
        if not self.suspects and not self.condemned and not self.denied:
            self.rejections = 0

    def _condemned(self, row: Row, fate: Dead) -> Dead:
        if self.rules.poison is Poison.HALT:
            raise Halted(
                f"row {row.id} (topic {row.topic!r}) cannot be sent: {fate.reason}; mend or delete it and start again, "
                "or choose another policy than 'halt'"
            )
        return fate._replace(blocking=self.rules.poison is Poison.BLOCK_KEY and row.stream is not None)

    def _require_mine(self, control: Control | None) -> None:
        if control is None or control.outbox_id != self.me.outbox_id:
            raise Superseded("the control row is not this relay's any more: somebody removed or replaced it")
        if control.term != self.me.term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")


def _beyond(record: Record, statuses: Mapping[str, TopicStatus]) -> int | None:
    """Return how many partitions there are, if the record asks for one beyond them."""
    status = statuses.get(record.topic)
    if record.partition < 0 or not isinstance(status, Available) or record.partition < status.partitions:
        return None
    return status.partitions
