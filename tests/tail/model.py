"""A model of the WAL, its slot, Kafka and the dead rows, on which attempts of a tail run step by step.

Any step may be an attempt's last, and older attempts may go on. Each event is judged: a broken promise raises
`AssertionError`. Transactional ids and claims are left out: `tests/relay/model.py` has them.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from thresher.core.errors import Superseded
from thresher.delivery.batch import NOTHING_YET, Batch
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.effects import (
    AwaitSettled,
    Begin,
    CloseAhead,
    Commit,
    Confine,
    Control,
    DiscardReadAhead,
    Effect,
    Fault,
    Flush,
    Hold,
    Holder,
    Init,
    KeepWaits,
    Lift,
    OpenAhead,
    Produce,
    ReadControl,
    ReadHolder,
    ReadProgress,
    Recovered,
    Release,
    ReportRejected,
    Settle,
    Survey,
    Sweep,
    Take,
    Unhold,
    WriteClaim,
    WriteProgress,
)
from thresher.delivery.fate import Kind, dead
from thresher.delivery.reading.row_source import ReadRequest
from thresher.delivery.row import Record, Row, RowList
from thresher.delivery.rules import Rules
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus, Unavailable
from thresher.tail.buffer import Bounds, DeadChange, LogBuffer
from thresher.tail.chunk import Chunk
from thresher.tail.coverage import Coverage
from thresher.tail.log_state import LogState, Missing, judged
from thresher.tail.position import Position
from thresher.tail.problem import LogLost
from thresher.tail.progress import TailBook, TailProgress, decode, encode
from thresher.tail.protocol import protocol

OUTBOX_ID = "outbox"
GOOD, NAMED_POISON, POISON, MALFORMED = range(4)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HELD_TICKS = 3
_ANY_FATE = dead(Kind.MALFORMED, "any")


class Fenced(Exception):
    """The broker has a newer epoch."""


@dataclass(frozen=True)
class Written:
    """A change that was committed."""

    number: int
    topic: str
    key: bytes | None
    nature: int
    position: Position
    end: int


@dataclass
class Running:
    """One attempt."""

    term: str
    buffer: LogBuffer
    book: TailBook
    steps: Iterator[Effect]
    due: Effect
    epoch: int = -1
    # How many changes of the WAL its stream has handed over; None before the stream is open.
    place: int | None = None
    last: list[TailProgress] = field(default_factory=list)
    # The records of the open transaction, each with its place among the transaction's rows.
    produced: list[tuple[int, Row]] = field(default_factory=list)
    staged: TailProgress | None = None
    settling: list[tuple[TailProgress, bool]] = field(default_factory=list)
    in_flight: dict[int, int] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    # Topics whose rows a sweep reads; and topics of sweeps that have ended.
    sweeping: frozenset[str] = frozenset()
    swept: frozenset[str] = frozenset()
    generation: int = 0
    # `adopted`: its term found the slot adopted. `state`: the state of the WAL at its start. `owed`: dead changes that
    # are not durable yet.
    adopted: bool = False
    state: LogState | None = None
    owed: list[DeadChange] = field(default_factory=list)


class TailWorld:
    """The whole model."""

    def __init__(self, seed: int, waiting: int) -> None:
        self.random = random.Random(seed)
        self.waiting = waiting
        self.rules = Rules(grace_seconds=1e9)
        # The server: its system id and timeline, the end of its WAL, and the ends of earlier timelines.
        self.system, self.timeline, self.end = 1, 1, 90
        self.left: list[tuple[int, int]] = []
        self.numbers = itertools.count(1)
        self.log: list[Written] = []
        self.ends: list[int] = []
        # The position at which the slot was created, and its confirmed position.
        self.made = self.confirmed = 100
        # The control row has no progress topic: the next leader accepts the slot as it is.
        self.accepted = True
        # `moved`: others have moved the slot. `gap`: changes are missing, which must be noticed.
        self.moved = self.gap = False
        self.given_up: set[int] = set()
        self.missing_topics: set[str] = set()
        self.terms: list[str] = []
        self.epoch = 0
        self.progress: list[bytes] = []
        self.sent: list[Written] = []
        self.dead: Counter[int] = Counter()
        self.now = 0
        self.attempts: list[Running] = []
        self.take_over()

    # Events

    def lsn(self) -> int:
        """Return the next position of the WAL."""
        self.end += 10
        return self.end

    def commit(self, rows: list[tuple[str, bytes | None, int]]) -> None:
        """Commit a transaction. Some of its changes share a position."""
        changes, change = [], 0
        for place, row in enumerate(rows):
            change = change if place and self.random.random() < 0.3 else self.lsn()
            changes.append((change, row))
        commit, end = self.lsn(), self.lsn()
        seen: Counter[int] = Counter()
        for change, (topic, key, nature) in changes:
            position = Position(commit, change, seen[change])
            seen[change] += 1
            self.log.append(Written(next(self.numbers), topic, key, nature, position, end))
        self.ends.append(end)

    def take_over(self) -> None:
        """Let another process lead; its predecessor may go on for a while."""
        self.terms.append(f"term-{len(self.terms)}")
        self.adopted = self.accepted
        if self.accepted:
            self.moved = self.gap = False
        self.launch()

    def fail_over(self, share: float) -> None:
        """Promote a standby that has all published changes, but perhaps not the whole log; its slot may be behind."""
        self.attempts.clear()
        if self.moved:
            return
        covered = decode(self.progress[-1]).coverage if self.progress else Coverage()
        lowest = max([covered.position.commit + 10, *(end for _, end in self.left), self.made])
        left = lowest + int(share * max(0, self.end + 10 - lowest) / 10) * 10
        self.log = [each for each in self.log if each.position.commit < left]
        self.ends = [end for end in self.ends if end <= left]
        known = [end for end in (self.made, *self.ends, self.confirmed) if self.made <= end <= self.confirmed]
        self.confirmed = self.random.choice([end for end in known if end <= left])
        self.left.append((self.timeline, left))
        self.timeline, self.end = self.timeline + 1, left - 10

    def make_slot_anew(self) -> None:
        """Drop the slot while no tail reads it, and create another."""
        self.attempts.clear()
        self.made = self.confirmed = self.lsn()
        done = {each.number for each in self.sent} | set(self.dead)
        lost = {each.number for each in self.log if each.position.commit < self.confirmed} - done - self.given_up
        self.given_up |= lost
        self.moved = True
        self.gap |= bool(lost) and not self.accepted

    def adopt(self) -> None:
        """Let an operator accept the slot as it is."""
        self.attempts.clear()
        self.accepted = True
        self.take_over()

    def move_to_another_system(self) -> None:
        """Move the outbox to another database, whose WAL is shorter; an operator adopts it."""
        self.system, self.timeline, self.end, self.left = self.system + 1, 1, 90, []
        self.log, self.ends, self.sent = [], [], []
        self.made = self.confirmed = 100
        self.dead.clear()
        self.given_up.clear()
        self.adopt()

    def launch(self) -> None:
        """Begin an attempt under the newest term."""
        term = self.terms[-1]
        buffer = LogBuffer(Bounds(rows=20, bytes=1 << 30, waiting=self.waiting))
        buffer.cover(Coverage(noted=self.confirmed))
        timeline = self.timeline
        book = TailBook(
            buffer=buffer, outbox_id=OUTBOX_ID, term=term, timeline=lambda: timeline, monotonic=lambda: float(self.now)
        )
        me = ShardIdentity(outbox_id=OUTBOX_ID, term=term, shard=0)
        steps = protocol(me, self.rules, book)
        self.attempts.append(Running(term, buffer, book, steps, next(steps), adopted=self.adopted))

    def step(self, attempt: Running) -> None:
        """Do an attempt's next effect; an error ends the attempt."""
        if attempt not in self.attempts:
            return
        try:
            with self._noticing():
                answer = self._do(attempt, attempt.due)
                attempt.due = attempt.steps.send(answer)  # type: ignore[attr-defined]
        except (Fenced, Superseded, BrokerLost, StopIteration):
            self.attempts.remove(attempt)

    def read(self, attempt: Running, rows: int, *, idle: bool) -> None:
        """Let its stream hand over some changes, as far as the buffer has room."""
        if attempt.place is None or attempt not in self.attempts:
            return
        if attempt.owed:
            self._set_aside(attempt.owed)
            attempt.owed = []
            attempt.buffer.dead_written()
        part = self.log[attempt.place : attempt.place + min(rows, attempt.buffer.room[0])]
        attempt.place += len(part)
        behind = self.log[attempt.place] if attempt.place < len(self.log) else None
        ended = max((each.end for each in self.log[: attempt.place]), default=0)
        if behind is not None and behind.end == ended:
            ended = max((end for end in self.ends if end < ended), default=0)
        attempt.owed = attempt.buffer.add(
            Chunk(
                positions=[each.position for each in part],
                rows=[row_of(each) for each in part],
                commit_times=[each.position.commit for each in part],
                ended=ended,
                idle_at=self.lsn() if idle and behind is None else None,
            )
        )
        if not attempt.owed:
            attempt.buffer.dead_written()

    def settle(self, attempt: Running) -> None:
        """Let its settler settle the next progress record."""
        try:
            with self._noticing():
                self._settle(attempt)
        except Superseded:
            self.attempts.remove(attempt)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Handle `LogLost`: it must have a cause, and an operator accepts the slot."""
        try:
            yield
        except LogLost:
            assert self.moved, "the WAL counts as lost although the slot was not moved"
            self.adopt()

    def _settle(self, attempt: Running) -> None:
        if not attempt.settling:
            return
        progress, recovering = attempt.settling.pop(0)
        if recovering:
            self._set_aside(attempt.buffer.cover(self._covered(attempt, progress)))
            return
        self._set_aside(list(progress.dead.values()))
        for id_ in progress.ids:
            attempt.in_flight.pop(id_, None)
        # A confirmation over a stream whose session was ended does not arrive.
        if attempt.place is not None and attempt is self.attempts[-1]:
            assert progress.coverage.noted <= decode(self.progress[-1]).coverage.noted, "confirmed before it was noted"
            self.confirmed = max(self.confirmed, progress.coverage.noted)

    def _covered(self, attempt: Running, progress: TailProgress) -> Coverage:
        if attempt.book.wrote(progress):
            return progress.coverage
        accepted = attempt.adopted and progress.origin.term != attempt.term
        found = judged(progress.origin, progress.coverage, self._log_state(attempt), accepted=accepted)
        if isinstance(found, Missing):
            if attempt.term != self.terms[-1]:
                raise Superseded
            raise LogLost(found.why)
        return found

    def _log_state(self, attempt: Running) -> LogState:
        attempt.state = attempt.state or LogState(
            system_id=str(self.system),
            timeline=self.timeline,
            end=self.end + 10,
            left=tuple(self.left),
            confirmed=self.confirmed,
        )
        return attempt.state

    # The verdict

    def judge(self) -> None:
        """Check that no change is repeated, reordered, both sent and dead, or lost."""
        numbers = [each.number for each in self.sent]
        assert len(set(numbers)) == len(numbers), "repeated"
        assert not set(numbers) & set(self.dead), "sent, and set aside too"
        last: dict[Any, Position] = {}
        for each in self.sent:
            if each.key is not None:
                assert last.get((each.topic, each.key), Position(0, 0, 0)) < each.position, "reordered"
                last[each.topic, each.key] = each.position
        covered = Coverage()
        if self.progress:
            last_record = decode(self.progress[-1])
            if last_record.origin.system_id == f"{self.system}/5":
                covered = last_record.coverage
        for each in self.log:
            if each.number in self.given_up:
                continue
            done = each.number in self.dead or each.number in numbers
            if not done:
                # Before the confirmed position, no tail could read the change again.
                assert each.position.commit >= self.confirmed, "lost: the slot is beyond it"
                assert not covered.decides(each.position) or each.position in covered.dead, "lost: it counts as decided"

    @property
    def drained(self) -> bool:
        """Whether every committed change has its fate, and the slot is confirmed beyond all of them."""
        return (
            not self.gap
            and self.confirmed >= max(self.ends, default=0)
            and all(each.number in self.dead or each.number in self.given_up or each in self.sent for each in self.log)
        )

    def judge_end(self) -> None:
        """Check that every change was sent, or was set aside because it cannot be sent."""
        self.judge()
        numbers = {each.number for each in self.sent}
        assert not self.gap, "a gap in the WAL was not noticed"
        for each in self.log:
            if each.number in self.given_up:
                continue
            assert each.number in numbers or each.number in self.dead, f"not published: {each}"
            assert each.number in numbers or each.nature != GOOD, f"set aside: {each}"
        assert self.confirmed >= max(self.ends, default=0), "the slot is not confirmed to the end"

    # Effects

    def _do(self, attempt: Running, effect: Effect) -> Any:
        if isinstance(effect, ReadControl | Init | WriteClaim | ReadHolder | ReadProgress):
            return self._about_ownership(attempt, effect)
        match effect:
            case Settle():
                progress: Any = effect.progress
                if not effect.recovering:
                    attempt.buffer.decide(progress.ids, progress.coverage)
                attempt.settling.append((progress, effect.recovering))
            case AwaitSettled():
                while attempt.settling:
                    self._settle(attempt)
                return True
            case Recovered():
                self._open(attempt)
            case Take() | DiscardReadAhead() | Hold() | Release() | Lift() | ReportRejected() | Survey():
                return self._about_rows(attempt, effect)
            case Unhold() | Sweep() | Confine() | KeepWaits():
                return self._about_sweeps(attempt, effect)
            case _:
                return self._about_kafka(attempt, effect)
        return None

    def _about_ownership(self, attempt: Running, effect: Effect) -> Any:
        match effect:
            case ReadControl():
                system = f"{self.system}/5"
                return Control(outbox_id=OUTBOX_ID, term=self.terms[-1], system_id=system, incarnation="1/0")
            case Init():
                self.epoch += 1
                attempt.epoch, attempt.produced, attempt.staged = self.epoch, [], None
                return None
            case WriteClaim():
                self._require_epoch(attempt)
                return True
            case ReadHolder():
                attempt.last = [decode(record) for record in self.progress[-1:]]
                return Holder(id_index=0, ours=attempt.epoch == self.epoch)
        return attempt.last

    def _open(self, attempt: Running) -> None:
        assert not self.gap, "a gap in the WAL was not noticed"
        assert self.confirmed <= attempt.buffer.coverage.noted, "the slot's start is beyond the recorded coverage"
        if attempt.adopted and attempt is self.attempts[-1]:
            self.accepted = False
        attempt.buffer.begin_at(self.confirmed)
        attempt.place = next(
            (place for place, each in enumerate(self.log) if each.end > self.confirmed), len(self.log)
        )  # fmt: skip

    def _about_rows(self, attempt: Running, effect: Effect) -> Any:
        match effect:
            case Take():
                return self._take(attempt)
            case DiscardReadAhead():
                attempt.generation += 1
                attempt.in_flight.clear()
            case Hold():
                attempt.held.update(dict.fromkeys(effect.topics, self.now + _HELD_TICKS))
                attempt.held.update(dict.fromkeys(effect.lasting, math.inf))
            case Release():
                attempt.held.clear()
            case Survey():
                found: dict[str, TopicStatus] = {
                    topic: Unavailable(refusal=Refusal.TOPIC, why="missing")
                    if topic in self.missing_topics
                    else Available(partitions=1)
                    for topic in effect.topics
                }
                return Surveyed(now=float(self.now), topics=found)
            case _:
                pass
        return None

    def _about_sweeps(self, attempt: Running, effect: Effect) -> Any:
        match effect:
            case Unhold():
                for topic in effect.topics:
                    attempt.held.pop(topic, None)
                attempt.sweeping -= effect.topics
            case Sweep():
                swept, attempt.swept = attempt.swept, frozenset()
                attempt.sweeping = attempt.sweeping or effect.topics - swept
                return swept
        return None

    def _about_kafka(self, attempt: Running, effect: Effect) -> Any:
        match effect:
            case OpenAhead() | CloseAhead():
                # A producer that cannot open a transaction is discarded while it holds no records.
                return not attempt.owed and self.random.random() > 0.02
            case Begin():
                return self._begin(attempt)
            case Produce():
                rows = enumerate(effect.rows)
                attempt.produced = [(place, row) for place, row in rows if isinstance(row.plan, Record)]
                return []
            case Flush():
                return self._flush(attempt)
            case WriteProgress():
                attempt.staged = effect.progress  # type: ignore[assignment]
                return True
            case Commit():
                return self._commit(attempt)
        raise AssertionError(effect)

    def _begin(self, attempt: Running) -> bool:
        if self.random.random() < 0.02:
            return False
        self._require_epoch(attempt)
        attempt.produced, attempt.staged = [], None
        return True

    def _take(self, attempt: Running) -> Any:
        held = [topic for topic, until in attempt.held.items() if until > self.now]
        sweeps = bool(attempt.sweeping) and self.random.random() < 0.5
        request = ReadRequest(
            rows=self.random.choice([1, 2, 5]), bytes=1 << 30, in_flight=dict(attempt.in_flight),
            held=sorted(attempt.sweeping) if sweeps else held, among=sweeps,
        )  # fmt: skip
        found, _ = attempt.buffer.take(request)
        if not found and sweeps:
            for topic in attempt.sweeping:
                attempt.held.pop(topic, None)
            attempt.swept, attempt.sweeping = attempt.swept | attempt.sweeping, frozenset()
        if not found:
            return NOTHING_YET
        attempt.in_flight.update((row[0], 0) for row in found)
        return Batch(rows=RowList([_planned(row) for row in found]), generation=attempt.generation)

    def _flush(self, attempt: Running) -> list[Fault]:
        self._require_epoch(attempt)
        natures = {place: int(row.plan.value or b"") for place, row in attempt.produced if isinstance(row.plan, Record)}
        if named := [place for place, nature in natures.items() if nature == NAMED_POISON]:
            return [Fault(kind=Kind.REJECTED, why="bad", place=place) for place in named]
        return [Fault(kind=Kind.REJECTED, why="one is bad")] if POISON in natures.values() else []

    def _commit(self, attempt: Running) -> bool:
        self._require_epoch(attempt)
        luck = self.random.random()
        if luck < 0.05:
            # The commit did not arrive, and its outcome is unknown.
            return False
        assert attempt.staged is not None
        self.progress.append(encode(attempt.staged))
        for _, row in attempt.produced:
            # The buffer returns positions together with fates: any fate will do.
            (position,) = attempt.buffer.dead_of([(row.id, _ANY_FATE)])
            self.sent.append(next(each for each in self.log if each.position == position))
        # Or the commit arrived, and its outcome is unknown.
        return luck >= 0.1

    def _require_epoch(self, attempt: Running) -> None:
        if attempt.epoch != self.epoch:
            raise Fenced

    def _set_aside(self, changes: list[DeadChange]) -> None:
        for change in changes:
            self.dead[change.row[0]] += 1


def row_of(written: Written) -> tuple[Any, ...]:
    """Return a change as the stream gives it."""
    created = _EPOCH + timedelta(microseconds=written.number)
    value = b"%d" % written.nature
    return (written.number, created, written.topic, written.key, value, (), (), None, None, None)


def _planned(row: tuple[Any, ...]) -> Row:
    plan: Any = Record(row[2], row[4], row[3], -1, 0, None)
    if row[4] == b"%d" % MALFORMED:
        plan = dead(Kind.MALFORMED, "it is malformed")
    return Row(row[0], 0, row[2], row[3], plan)
