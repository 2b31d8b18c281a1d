"""Carries rows to their fates: what both guarantees, and every pipeline that publishes, have in common.

1. **Recover**: the control row's term must be ours; `Init` fences the last owner and ends its transaction; the term
   must still be ours, or we leave and never init again; then the committed progress is read and settled, all of its
   horizon if the database is not the incarnation it speaks of.
2. **Carry** a batch: `Begin`, `Produce`, `Flush`; only when nothing failed, `Note` the progress; `Commit` only once the
   settling of the transaction before is durable; then `Settle`.
3. After a rejection the producer is not used again: recover as at the start, and read anew. Then the topic that is not
   there is left out, the row that was named is set aside, or the rows are tried by halves: only one that fails alone is
   poison.
"""

import enum
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thresher.core.errors import Superseded
from thresher.delivery.effects import (
    Absent,
    AwaitSettled,
    Begin,
    Commit,
    Control,
    Effect,
    Fault,
    Flush,
    Hold,
    Init,
    Lift,
    Lot,
    Note,
    Present,
    Produce,
    ReadControl,
    ReadProgress,
    Renew,
    Settle,
    Standing,
    Survey,
    Surveyed,
)
from thresher.delivery.fate import Dead, Kind, dead
from thresher.delivery.problem import ForeignProgress, Halted
from thresher.delivery.progress import Origin, Progress, fitting, progress_of
from thresher.delivery.row import Record, Row, Sendable, records_of, topics_of
from thresher.kafka.problem import BrokerLost

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
    # What one progress record may take.
    progress_bytes: int = 900_000


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
    number: int = 0
    origin: Origin | None = None
    # Topics that are not there for us, since when and when last seen so; those that only a try can tell of, until when.
    absent: dict[str, tuple[float, float]] = field(default_factory=dict)
    denied: dict[str, tuple[float, Absent]] = field(default_factory=dict)
    # Rows that were found out to be poison and have not been settled as dead yet.
    condemned: dict[tuple[int, int], Dead] = field(default_factory=dict)
    # Rows of the transaction that was rejected last: one of them is poison. And how many were rejected on the way.
    suspects: set[tuple[int, int]] = field(default_factory=set)
    rejections: int = 0

    def recover(self) -> Steps:
        """Fence the last owner of the shard, see that it is still ours, and settle what was published."""
        self._require_mine((yield ReadControl()))
        yield Init()
        control: Control = yield ReadControl()
        self._require_mine(control)
        self.origin = Origin(
            outbox_id=self.me.outbox_id,
            system_id=control.system_id,
            incarnation=control.incarnation,
            term=self.me.term,
            shard=self.me.shard,
        )
        records: list[Progress] = yield ReadProgress()
        self._require_ours(records)
        horizon: Iterable[Progress] = records
        if records and records[-1].origin.incarnation != control.incarnation:
            # A restart may have taken more than the last settling back, of any layout.
            horizon = yield ReadProgress(whole=True)
        for record in horizon:
            self._require_ours([record])
            yield Settle(record, recovering=True)
            yield AwaitSettled()
        if records:
            self.number = records[-1].number
        else:
            # Our name on the partition: another outbox finds it taken from the start.
            yield Begin()
            if not (yield Note(progress_of(self.origin, 0, [], 0))) or not (yield Commit()):
                raise BrokerLost("the first progress record may not have been committed")

    def carry(self, lot: Lot) -> Generator[Effect, Any, bool]:
        """Bring the rows of a lot to their fates, or back to the table; return whether what was read is forgotten."""
        held: set[str] = set()
        rest: Sequence[Row] = self._judged(lot.rows)
        # Rows are left for later: they went back to the table, or wait in it behind one that blocks their key.
        left = len(rest) < len(lot.rows)
        while rest:
            before = len(rest)
            rest = yield from self._surveyed(rest, held)
            left |= len(rest) < before
            rows, rest = self._cut(rest)
            if not rows:
                continue
            yield Begin()
            faults: list[Fault] = yield Produce(rows)
            progress = progress_of(self._origin(), self.number + 1, rows, lot.failures)
            faults = faults + (yield Flush(progress))
            spared: Sequence[Row] | None = None
            if faults:
                spared = self._spared(rows, faults)
                if spared is None:
                    yield from self._rejected(rows, faults)
                    return True
                progress = progress_of(self._origin(), self.number + 1, spared, lot.failures)
            if not (yield Note(progress, despite=bool(faults))):
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
            if not isinstance(rows, Sendable):
                left |= any(isinstance(row[4], Dead) and row[4].blocking for row in rows)
        if left:
            # They must not be overtaken by what was read behind them.
            yield AwaitSettled()
            yield Renew()
        return left

    def _spared(self, _rows: Sequence[Row], _faults: Sequence[Fault]) -> Sequence[Row] | None:
        """Return what of a transaction with faults may be committed nevertheless; None if it must not be."""
        return None

    def _cut(self, rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
        """Return what one transaction may carry, and the rest: suspects go by themselves, half of them at most."""
        fit = fitting(rows, self.rules.progress_bytes)
        if self.suspects:
            count, suspect = 0, None
            for place, row in enumerate(rows[:fit]):
                if not isinstance(row.plan, Record):
                    continue
                among = (row.id, row.create_time) in self.suspects
                if suspect not in {None, among} or (among and 2 * count >= len(self.suspects)):
                    fit = place
                    break
                suspect, count = among, count + 1
        return rows[:fit], rows[fit:]

    def _origin(self) -> Origin:
        if self.origin is None:
            raise AssertionError("recover first")
        return self.origin

    def _judged(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Apply the policy to rows that are dead already, and the sentence to those that were found out."""
        condemned = self.condemned
        if not condemned and (isinstance(rows, Sendable) or not any(isinstance(row[4], Dead) for row in rows)):
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
        return _settled_streams(judged)

    def _surveyed(self, rows: Sequence[Row], held: set[str]) -> Generator[Effect, Any, Sequence[Row]]:
        """Look at the topics; hold or condemn rows of those that are not there."""
        topics = topics_of(rows)
        if not topics:
            return rows
        answer: Surveyed = yield Survey(topics)
        lost: dict[str, Absent] = {}
        for topic, standing in answer.standings.items():
            until, denial = self.denied.get(topic, (0.0, None))
            match standing:
                case Absent():
                    lost[topic] = standing
                case Present():
                    if denial is not None:
                        # Only a try will tell, and not at once again.
                        if answer.now < until:
                            lost[topic] = denial
                    elif topic in self.absent:
                        del self.absent[topic]
                        yield Lift(topic)
        if lost:
            rows = yield from self._miss(rows, lost, answer.now, held)
        return (yield from self._placed(rows, answer.standings))

    def _placed(self, rows: Sequence[Row], standings: Mapping[str, Standing]) -> Generator[Effect, Any, Sequence[Row]]:
        """Set rows aside that ask for a partition that is not there."""
        if isinstance(rows, Sendable) and not rows.placed:
            return rows
        doubtful = {
            row.plan.topic for row in rows if isinstance(row.plan, Record) and _beyond(row.plan, standings) is not None
        }
        if not doubtful:
            return rows
        # Partitions may have been added since we last looked.
        answer: Surveyed = yield Survey(frozenset(doubtful), fresh=True)
        placed = []
        for row in rows:
            plan = row.plan
            there = _beyond(plan, answer.standings) if isinstance(plan, Record) else None
            if isinstance(plan, Record) and there is not None:
                why = f"partition {plan.partition} of {plan.topic} is not there: it has {there}"
                placed.append(row._replace(plan=self._condemned(row, dead(Kind.NO_PARTITION, why))))
            else:
                placed.append(row)
        return _settled_streams(placed)

    def _miss(
        self, rows: Sequence[Row], lost: Mapping[str, Absent], now: float, held: set[str]
    ) -> Generator[Effect, Any, Sequence[Row]]:
        """Hold the rows of lost topics, or condemn them when the grace is over."""
        grace = self.rules.grace_seconds
        expired: dict[str, Kind] = {}
        for topic, absent in lost.items():
            if absent.kind is None:
                self.absent[topic] = (now, now)
            elif now - self._missed(topic, now) >= grace:
                expired[topic] = absent.kind
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
        return [row for row in _settled_streams(kept) if row.topic not in held]

    def _missed(self, topic: str, now: float) -> float:
        """Note that a topic is not there, and return since when; who was not looked for meanwhile gets a new grace."""
        since, last = self.absent.get(topic, (now, now))
        if now - last > max(_FORGOTTEN_SECONDS, self.rules.grace_seconds):
            since = now
        self.absent[topic] = (since, now)
        return since

    def _rejected(self, rows: Sequence[Row], faults: Sequence[Fault]) -> Steps:
        """Start over, since a producer that failed is not used again, and remember what the rejection tells."""
        yield from self.recover()
        self.rejections += 1
        sent = [place for place, _ in records_of(rows)]
        # What time may mend tells nothing about a row.
        telling = [(fault, fault.kind) for fault in faults if fault.kind is not None]
        lost = {fault.topic: Absent(kind=kind, why=fault.why) for fault, kind in telling if fault.topic is not None}
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
                self.suspects.discard((row.id, row.create_time))
        elif telling:
            self.suspects = {(rows[place].id, rows[place].create_time) for place in sent}
        yield Renew()

    def _delivered(self, rows: Sequence[Row]) -> Steps:
        """Forget what these rows have disproved."""
        if self.suspects or self.condemned:
            for row in rows:
                self.suspects.discard((row.id, row.create_time))
                self.condemned.pop((row.id, row.create_time), None)
        if self.denied:
            for topic in {row.plan.topic for row in rows if isinstance(row.plan, Record)} & set(self.denied):
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

    def _require_ours(self, records: Iterable[Progress]) -> None:
        for record in records:
            if record.origin.outbox_id != self.me.outbox_id:
                raise ForeignProgress(
                    f"the progress topic holds records of another outbox ({record.origin.outbox_id}): "
                    "two outboxes on one broker need different names"
                )


def _beyond(record: Record, standings: Mapping[str, Standing]) -> int | None:
    """Return how many partitions there are, if the record asks for one beyond them."""
    standing = standings.get(record.topic)
    if record.partition < 0 or not isinstance(standing, Present) or record.partition < standing.partitions:
        return None
    return standing.partitions


def _settled_streams(rows: Sequence[Row]) -> Sequence[Row]:
    """Leave out what follows a blocking row within its stream."""
    blocked: set[Any] = set()
    kept = []
    for row in rows:
        if row.stream in blocked:
            continue
        kept.append(row)
        if isinstance(row.plan, Dead) and row.plan.blocking:
            blocked.add(row.stream)
    return kept
