"""A model of the log, its slot, Kafka and the dead rows, on which attempts of a tail run step by step.

Any step may be an attempt's last, and older attempts may go on. Whatever happens is judged: `AssertionError` where a
promise is broken. Lanes and claims are left out: `tests/relay/model.py` has them.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
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
    Control,
    DiscardReadAhead,
    Effect,
    Fault,
    Flush,
    Hold,
    Holder,
    Init,
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
    Take,
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
from thresher.tail.log_stand import LogStand, missing
from thresher.tail.position import Position
from thresher.tail.progress import TailBook, TailProgress, decode, encode
from thresher.tail.protocol import protocol

OUTBOX_ID = "outbox"
GOOD, NAMED_POISON, POISON, MALFORMED = range(4)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HELD_TICKS = 3


class Fenced(Exception):
    """A newer epoch has been given out."""


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
    steps: Iterator[Effect]
    due: Effect
    epoch: int = -1
    # How many changes of the log its stream has handed over; None before it is open.
    place: int | None = None
    last: list[TailProgress] = field(default_factory=list)
    # The records of the open transaction, each with its place among the transaction's rows.
    produced: list[tuple[int, Row]] = field(default_factory=list)
    staged: TailProgress | None = None
    settling: list[tuple[TailProgress, bool]] = field(default_factory=list)
    in_flight: dict[int, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    generation: int = 0


class TailWorld:
    """Everything."""

    def __init__(self, seed: int, waiting: int) -> None:
        self.random = random.Random(seed)
        self.waiting = waiting
        self.rules = Rules(grace_seconds=1e9)
        self.lsn = itertools.count(100, 10)
        self.numbers = itertools.count(1)
        self.log: list[Written] = []
        self.ends: list[int] = []
        self.confirmed = 100
        self.missing_topics: set[str] = set()
        self.terms: list[str] = []
        self.epoch = 0
        self.progress: list[bytes] = []
        self.sent: list[Written] = []
        self.dead: Counter[int] = Counter()
        self.now = 0
        self.attempts: list[Running] = []
        self.take_over()

    # What happens

    def commit(self, rows: list[tuple[str, bytes | None, int]]) -> None:
        """A transaction is committed. Some of its changes share a position."""
        changes, change = [], 0
        for place, row in enumerate(rows):
            change = change if place and self.random.random() < 0.3 else next(self.lsn)
            changes.append((change, row))
        commit, end = next(self.lsn), next(self.lsn)
        seen: Counter[int] = Counter()
        for change, (topic, key, nature) in changes:
            position = Position(commit, change, seen[change])
            seen[change] += 1
            self.log.append(Written(next(self.numbers), topic, key, nature, position, end))
        self.ends.append(end)

    def take_over(self) -> None:
        """Another process leads; its predecessor may go on for a while."""
        self.terms.append(f"term-{len(self.terms)}")
        self.launch()

    def launch(self) -> None:
        """Begin an attempt under the newest term."""
        term = self.terms[-1]
        buffer = LogBuffer(Bounds(rows=20, bytes=1 << 30, waiting=self.waiting))
        buffer.cover(Coverage(noted=self.confirmed))
        book = TailBook(buffer=buffer, outbox_id=OUTBOX_ID, term=term, monotonic=lambda: float(self.now))
        me = ShardIdentity(outbox_id=OUTBOX_ID, term=term, shard=0)
        steps = protocol(me, self.rules, book)
        self.attempts.append(Running(term, buffer, steps, next(steps)))

    def step(self, attempt: Running) -> None:
        """Do what an attempt asks for next; an error ends it."""
        if attempt not in self.attempts:
            return
        try:
            answer = self._do(attempt, attempt.due)
            attempt.due = attempt.steps.send(answer)  # type: ignore[attr-defined]
        except (Fenced, Superseded, BrokerLost, StopIteration):
            self.attempts.remove(attempt)

    def read(self, attempt: Running, rows: int, *, idle: bool) -> None:
        """Its stream hands over some changes, as far as there is room."""
        if attempt.place is None:
            return
        part = self.log[attempt.place : attempt.place + min(rows, attempt.buffer.room[0])]
        attempt.place += len(part)
        behind = self.log[attempt.place] if attempt.place < len(self.log) else None
        ended = max((each.end for each in self.log[: attempt.place]), default=0)
        if behind is not None and behind.end == ended:
            ended = max((end for end in self.ends if end < ended), default=0)
        owed = attempt.buffer.add(
            Chunk(
                positions=[each.position for each in part],
                rows=[row_of(each) for each in part],
                commit_times=[each.position.commit for each in part],
                ended=ended,
                idle_at=next(self.lsn) if idle and behind is None else None,
            )
        )
        self._set_aside(owed)
        attempt.buffer.paid()
        assert not attempt.buffer.lost, "a dead change was lost"

    def settle(self, attempt: Running) -> None:
        """Its settler does the next thing: a whole record's dead rows, or their half and then it dies."""
        if not attempt.settling:
            return
        progress, recovering = attempt.settling.pop(0)
        if recovering:
            self._set_aside(attempt.buffer.cover(progress.coverage))
            return
        self._set_aside(list(progress.dead.values()))
        for id_ in progress.ids:
            attempt.in_flight.pop(id_, None)
        # A report of a stream whose session was ended does not arrive.
        if attempt.place is not None and attempt is self.attempts[-1]:
            assert progress.coverage.noted <= decode(self.progress[-1]).coverage.noted, "confirmed before it was noted"
            self.confirmed = max(self.confirmed, progress.coverage.noted)

    # Judging

    def judge(self) -> None:
        """See that nothing is repeated, reordered, both sent and dead, or out of reach."""
        numbers = [each.number for each in self.sent]
        assert len(set(numbers)) == len(numbers), "repeated"
        assert not set(numbers) & set(self.dead), "sent, and set aside too"
        last: dict[Any, Position] = {}
        for each in self.sent:
            if each.key is not None:
                assert last.get((each.topic, each.key), Position(0, 0, 0)) < each.position, "reordered"
                last[each.topic, each.key] = each.position
        covered = decode(self.progress[-1]).coverage if self.progress else Coverage()
        for each in self.log:
            done = each.number in self.dead or each.number in numbers
            if not done:
                # Nobody could read it again.
                assert each.position.commit >= self.confirmed, "lost: the slot is beyond it"
                assert not covered.decides(each.position) or each.position in covered.dead, "lost: it counts as decided"

    @property
    def drained(self) -> bool:
        """Whether all that was committed has come to its end, and the slot keeps nothing back."""
        return self.confirmed >= max(self.ends, default=0) and len(self.sent) + len(self.dead) >= len(self.log)

    def judge_end(self) -> None:
        """See that all was sent, or set aside if it cannot be."""
        self.judge()
        numbers = {each.number for each in self.sent}
        for each in self.log:
            assert each.number in numbers or each.number in self.dead, f"not published: {each}"
            assert each.number in numbers or each.nature != GOOD, f"set aside: {each}"
        assert self.confirmed >= max(self.ends, default=0), "the slot keeps log back"

    # Effects

    def _do(self, attempt: Running, effect: Effect) -> Any:
        if isinstance(effect, ReadControl | Init | WriteClaim | ReadHolder | ReadProgress):
            return self._about_ownership(attempt, effect)
        match effect:
            case Settle():
                progress: Any = effect.progress
                if not effect.recovering:
                    attempt.buffer.decide(progress.ids, progress.coverage)
                elif attempt.place is None:
                    stand = LogStand(system_id="1", timeline=1, end=1 << 60, confirmed=self.confirmed)
                    assert missing(progress.origin, progress.coverage, stand) is None
                attempt.settling.append((progress, effect.recovering))
            case AwaitSettled():
                while attempt.settling:
                    self.settle(attempt)
                return True
            case Recovered():
                self._open(attempt)
            case Take() | DiscardReadAhead() | Hold() | Release() | Lift() | ReportRejected() | Survey():
                return self._about_rows(attempt, effect)
            case _:
                return self._about_kafka(attempt, effect)
        return None

    def _about_ownership(self, attempt: Running, effect: Effect) -> Any:
        match effect:
            case ReadControl():
                return Control(outbox_id=OUTBOX_ID, term=self.terms[-1], system_id="1/5", incarnation="1/0")
            case Init():
                self.epoch += 1
                attempt.epoch, attempt.produced, attempt.staged = self.epoch, [], None
                return None
            case WriteClaim():
                self._require_epoch(attempt)
                return True
            case ReadHolder():
                attempt.last = [decode(record) for record in self.progress[-1:]]
                return Holder(lane=0, ours=attempt.epoch == self.epoch)
        return attempt.last

    def _open(self, attempt: Running) -> None:
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

    def _about_kafka(self, attempt: Running, effect: Effect) -> Any:
        match effect:
            case OpenAhead() | CloseAhead():
                return True
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
        request = ReadRequest(
            rows=self.random.choice([1, 2, 5]), bytes=1 << 30, in_flight=dict(attempt.in_flight), held=held
        )  # fmt: skip
        found, _ = attempt.buffer.take(request)
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
            # It did not arrive, and nobody knows.
            return False
        assert attempt.staged is not None
        self.progress.append(encode(attempt.staged))
        by_number = {change.given[0]: change for change in attempt.buffer._changes.values()}
        for _, row in attempt.produced:
            position = by_number[row.id].position
            self.sent.append(next(each for each in self.log if each.position == position))
        # Or it did, and nobody knows.
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
