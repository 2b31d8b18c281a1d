"""A model of Kafka, of the outbox's database and of the shell around the protocol, in which anything may stop anywhere.

1. The broker keeps one epoch and at most one open transaction for each lane of the one shard that is modelled; what is
   staged is read only once it is committed; an older epoch is fenced. A commit may arrive after its sender died. A
   transaction may be decided and not end: then its lane takes neither an init nor a transaction until it is healed.
2. The database keeps its tables in a `TableModel`; writers get ids when they insert and commit later, in any order.
   It can be restored to a snapshot, under a new incarnation: every session ends, ids are given again.
3. An attempt is the protocol's generator, its session, its epoch and its read-ahead. It may be left for dead and go on
   at any later step.
4. What happened is kept by message, whatever row stood for it, and judged as it happens: by what a reader of committed
   records gets, or, with marks, by what a reader of everything gets.
5. With marks, a look marks what it finds, under the term, and a mark that a dead client asked for may come late.
   Records fail before they are sent, or are said to have, by themselves or with the whole transaction;
   a commit's end may not be known.
"""

import itertools
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.relay.table_model import TableModel, Version
from thresher.core.errors import Superseded
from thresher.db.control import NewControlRow
from thresher.db.outbox_store import Wanted
from thresher.delivery import exactly_once
from thresher.delivery.batch import NOTHING_YET, Batch, FailingTransform
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.claims import LANES, Claim, holder
from thresher.delivery.effects import (
    Abandon,
    AwaitSettled,
    Begin,
    Blocked,
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
    Reset,
    Settle,
    Survey,
    Take,
    TryLane,
    WaitForTransform,
    WriteClaim,
    WriteProgress,
)
from thresher.delivery.fate import FILTERED, Dead, Filtered, Kind, dead
from thresher.delivery.row import ColumnRows, Record, Row, RowList, Rows
from thresher.delivery.rules import Poison, Rules
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus, Unavailable
from thresher.relay.protocol import mark_purge_reset
from thresher.relay.protocol.mark_purge_reset import Bounds
from thresher.relay.protocol.progress import OutboxProgress, Progress
from thresher.relay.settle import fates_of

OUTBOX_ID = "outbox"
PARTITIONS = 3
HELD_SECONDS = 2
# What a message is like: most can be sent.
GOOD, NAMED_POISON, POISON, FILTERED_OUT, MALFORMED, NO_PARTITION, REROUTED, MERGED = range(8)

RELAY = "relay"
Mark = tuple[int, int]
# What each may come to in a wave: not taken, taken and said to have failed, either without a name.
UNTAKEN, DENIED, NAMELESS = 0.03, 0.06, 0.08


def bundled(rows: Sequence[Row]) -> Rows:
    """Return rows as columns if they are all to be sent as they are stored, as a real lot does."""
    if not all(isinstance(row.plan, Record) and (row.plan.topic, row.plan.key) == (row.topic, row.key) for row in rows):
        return RowList(rows)
    records = [row.plan for row in rows if isinstance(row.plan, Record)]
    return ColumnRows(
        ids=array("q", [row.id for row in rows]),
        create_times=array("q", [row.create_time for row in rows]),
        named=[record.topic for record in records],
        values=[record.value for record in records],
        keys=[record.key for record in records],
        partitions=[record.partition for record in records],
        headers=[record.headers for record in records],
        topics=RowList(rows).topics,
        asks_for_partitions=any(record.partition >= 0 for record in records),
        size=RowList(rows).size,
    )


Stream = tuple[str, bytes]


class Fenced(Exception):
    """A newer epoch has been given out."""


class SessionLost(Exception):
    """The database hung up."""


class Cut(Exception):
    """The attempt's process is no more."""


@dataclass
class Message:
    """What an application wrote, and what became of it. Times are the model's own, one tick per happening."""

    number: int
    topic: str
    key: bytes | None
    nature: int
    inserted: int
    committed: int | None = None
    # The database forgot it: restored to before its commit, or emptied by somebody.
    erased: bool = False
    versions: list[Version] = field(default_factory=list)
    # Replayed where nothing waited for it: its place in the order is gone.
    displaced: bool = False
    # A restored database may not know that it was sent after a replay: whoever replays it again repeats it.
    not_again: bool = False

    @property
    def stream(self) -> Stream | None:
        return None if self.key is None else (self.topic, self.key)

    @property
    def sent_stream(self) -> Stream | None:
        """What a transform makes of it: one topic of several, or one key."""
        return None if self.key is None else (self.sent_topic, b"m" if self.nature == MERGED else self.key)

    @property
    def sent_topic(self) -> str:
        return "x" if self.nature == REROUTED else self.topic


@dataclass
class Transaction:
    """What is staged at the broker through a lane, under an epoch."""

    lane: int
    epoch: int
    records: list[Record] = field(default_factory=list)
    notes: list[Progress] = field(default_factory=list)
    # The commit was sent and has not arrived; its sender is gone.
    ending: bool = False
    claim: Claim | None = None


@dataclass
class Broker:
    """One shard's transactional ids, the topics, and one partition of progress."""

    # By lane. No two epochs are the same.
    epochs: dict[int, int] = field(default_factory=dict)
    transactions: dict[int, Transaction] = field(default_factory=dict)
    # Lanes whose open transaction has a partition that cannot be written to; lanes whose last one cannot end for that.
    failing: set[int] = field(default_factory=set)
    blocked: set[int] = field(default_factory=set)
    progress: list[Progress] = field(default_factory=list)
    # What was claimed since the last progress record, and by whom that was written.
    written_by: Claim | None = None
    claims: list[Claim] = field(default_factory=list)
    # Available, missing, or there but not ours to write to.
    topics: dict[str, str] = field(default_factory=dict)

    def init(self, lane: int) -> int | None:
        """Return a new epoch; None while the lane's last transaction has not ended."""
        if lane in self.blocked:
            return None
        self.epochs[lane] = 1 + max(self.epochs.values(), default=0)
        if self.transactions.pop(lane, None) is not None:
            self.ended(lane)
        return None if lane in self.blocked else self.epochs[lane]

    def ended(self, lane: int) -> None:
        """Take in that a lane's transaction was decided: where a partition of it fails, that is all for now."""
        self.transactions.pop(lane, None)
        if lane in self.failing:
            self.failing.discard(lane)
            self.blocked.add(lane)

    def staged(self, lane: int, epoch: int) -> Transaction:
        if epoch != self.epochs.get(lane):
            raise Fenced
        return self.transactions.setdefault(lane, Transaction(lane, epoch))

    def fail(self, lane: int) -> None:
        """A partition that was written to through a lane cannot be written to any more."""
        (self.failing if lane in self.transactions else self.blocked).add(lane)

    def late(self) -> list[Transaction]:
        """Return the transactions whose commit is on its way."""
        return [transaction for transaction in self.transactions.values() if transaction.ending]

    def heal(self) -> None:
        self.failing.clear()
        self.blocked.clear()


@dataclass
class ReadLot:
    generation: int
    epoch: int
    rows: list[Row]


@dataclass
class Attempt:
    """One run of the protocol, with its session, producer and threads."""

    number: int
    term: str
    steps: Iterator[Effect]
    incarnation: int
    due: Effect
    epoch: int = -1
    lane: int = 0
    claims: int = 0
    # The last progress record, as it was when the claims were read.
    last: list[Progress] = field(default_factory=list)
    session: bool = True
    # The control row named its term when it last looked.
    confirmed: bool = False
    recovered: bool = False
    stopping: bool = False
    # The client's own: records wait here until they are flushed.
    queue: list[tuple[int, Record]] = field(default_factory=list)
    note: Progress | None = None
    # With the mark under which its rows were sent.
    settling: list[tuple[Progress, Mark | None]] = field(default_factory=list)
    hot: tuple[Stream, ...] = ()
    generation: int = 0
    in_flight: dict[int, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    held_streams: dict[Stream, int] = field(default_factory=dict)
    held_rows: dict[tuple[int, int], int] = field(default_factory=dict)
    reading: ReadLot | None = None
    ready: ReadLot | None = None
    surveyed: dict[str, TopicStatus] = field(default_factory=dict)

    @property
    def leader(self) -> Mark:
        return (self.number, self.generation)


class World:
    """Everything, and what may happen to it. Whatever happens is judged: `AssertionError` where a promise is broken."""

    def __init__(
        self,
        poison: Poison,
        progress_bytes: int,
        *,
        stormy: bool = False,
        marking: bool = False,
        merging: bool = False,
    ) -> None:
        self.marking = marking
        # A transform is there, and rows are read as for one. A key that a dead row blocks keeps no other one waiting.
        self.merging = merging
        self.merged_in_order = merging and poison is Poison.DEAD_LETTER
        # Topics come and go while attempts go on.
        self.stormy = stormy
        self.rules = Rules(poison=poison, grace_seconds=5.0, merging=merging)
        self.progress_bytes = progress_bytes
        self.broker = Broker(topics={"a": "present", "b": "present", "x": "present"})
        self.tables: TableModel[Message] = TableModel(bucket=_bucket)
        self.tables.insert(
            NewControlRow(name=RELAY, outbox="outbox", outbox_id=OUTBOX_ID, system_id="s", term="", mode="", shards=1)
        )
        self.incarnation = 1
        self.now = 0
        self.ticks = itertools.count(1)
        self.terms: list[str] = []
        self.attempts: list[Attempt] = []
        self.numbers = itertools.count(1)
        self.writers: list[list[tuple[int, int, Message]]] = []
        self.snapshots: list[TableModel[Message]] = []
        # Settlings that a session was at when its client died: the server may still do them.
        self.orphans: list[tuple[Progress, Mark | None]] = []
        # Marks likewise: term, mark, rows.
        self.late_marks: list[tuple[str, Mark, list[int]]] = []
        # What happened.
        self.messages: list[Message] = []
        self.by_version: dict[Version, Message] = {}
        self.sent: list[Message] = []
        # Under which topic and key each was sent.
        self.sent_as: list[Stream | None] = []
        self.repeated = 0
        self.times_sent: Counter[int] = Counter()
        self.filtered: set[int] = set()
        self.condemned: set[int] = set()
        self.settled: Counter[tuple[int, Version]] = Counter()
        self.take_over()

    # Writers and operators

    def write(self, topic: str, key: bytes | None, nature: int, writer: int | None = None) -> None:
        """Insert one row, in a new transaction or in an open one."""
        message = Message(len(self.messages), topic, key, nature, inserted=next(self.ticks))
        self.messages.append(message)
        id_ = self.tables.draw_id()
        if writer is None or not self.writers:
            self.writers.append([])
            writer = -1
        else:
            writer %= len(self.writers)
        self.writers[writer].append((id_, message.inserted, message))

    def finish(self, writer: int, *, commit: bool) -> None:
        """End a writer's transaction."""
        rows = self.writers.pop(writer % len(self.writers))
        tick = next(self.ticks)
        for id_, time, message in rows:
            if commit:
                message.committed = tick
                self.tables.put(id_, time, message)
                self._stored(id_, time, message)

    def _stored(self, id_: int, time: int, message: Message) -> None:
        message.versions.append((id_, time))
        self.by_version[id_, time] = message

    def replay(self, choice: int, *, mended: bool) -> None:
        """Put a dead row back under its id."""
        found = [
            (version, entry)
            for version, entry in sorted(self.tables.dead.items(), key=lambda item: item[0])
            if not entry.message.not_again and version[0] not in self.tables.outbox
        ]
        if not found:
            return
        version, entry = found[choice % len(found)]
        if mended:
            entry.message.nature = GOOD
        entry.message.displaced |= not entry.fate.blocking
        self._put_back(version)

    def _put_back(self, version: Version) -> None:
        tick = next(self.ticks)
        (message,) = self.tables.replay([version], tick)
        self._stored(version[0], tick, message)

    def discard(self, version: Version) -> None:
        """Somebody says that a dead row needs no sending."""
        del self.tables.dead[version]

    def restore(self, choice: int) -> None:
        """Go back to an earlier state of the database: sessions end, and what is open in them."""
        self.incarnation += 1
        self.writers.clear()
        self.orphans.clear()
        self.late_marks.clear()
        place = choice % len(self.snapshots)
        self.tables = self.snapshots[place].snapshot()
        # What was backed up later is of a past that there never was.
        del self.snapshots[place + 1 :]
        there = {message.number for _, message in self.tables.outbox.values()}
        there |= {entry.message.number for entry in self.tables.dead.values()}
        for message in self.messages:
            gone = message.committed is not None and message.number not in there
            # A row that was truncated and is back may come behind rows that were written in between.
            message.displaced |= message.erased and not gone
            message.erased |= gone and not self._has_fate(message)
            message.not_again |= len(message.versions) > 1

    def truncate(self) -> None:
        """Empty the outbox and begin with the first id again."""
        for _, message in self.tables.outbox.values():
            message.erased = True
        for entry in self.tables.dead.values():
            # Its id is not before its followers' any more.
            entry.message.not_again = True
        self.tables.truncate()

    def take_over(self, *, ends_sessions: bool = False) -> None:
        """A new leader writes its term."""
        self.terms.append(f"term-{len(self.terms)}")
        self.tables.take(RELAY, self.terms[-1])
        if ends_sessions:
            for attempt in self.attempts:
                attempt.session = False

    # Attempts

    def launch(self, term: str) -> Attempt:
        me = ShardIdentity(outbox_id=OUTBOX_ID, term=term, shard=0)
        book = OutboxProgress(outbox_id=OUTBOX_ID, term=term, shard=0, most_bytes=self.progress_bytes)
        if self.marking:
            steps = mark_purge_reset.protocol(me, self.rules, book, Bounds(in_flight_rows=3, window_rows=32))
        else:
            steps = exactly_once.protocol(me, self.rules, book)
        attempt = Attempt(next(self.numbers), term, steps, self.incarnation, next(steps))
        self.attempts.append(attempt)
        return attempt

    def kill(self, attempt: Attempt, *, settles: bool) -> None:
        """End a process for good; what its session was at may still be done."""
        self.attempts.remove(attempt)
        if settles and attempt.session and attempt.incarnation == self.incarnation:
            if attempt.settling:
                self.orphans.append(attempt.settling[0])
            if self.marking and attempt.recovered:
                rows = self.tables.pending(self._wanted(attempt, 3, 0), attempt.leader)
                self.late_marks.append((attempt.term, attempt.leader, [id_ for id_, _, _ in rows]))

    def step(self, attempt: Attempt, luck: random.Random) -> bool:
        """Do the effect that an attempt has come to; return whether it got anywhere."""
        try:
            answer = self._doings[type(attempt.due)](self, attempt, attempt.due, luck)
            if answer is _WAIT:
                return False
            attempt.due = attempt.steps.send(answer)  # type: ignore[attr-defined]
        except (Fenced, SessionLost, Cut, BrokerLost):
            self.kill(attempt, settles=luck.random() < 0.5)
        except (Superseded, StopIteration):
            self.attempts.remove(attempt)
        return True

    def step_with_threads(self, attempt: Attempt, luck: random.Random) -> bool:
        """Do one step; before it a writer, the attempt's reader or its settler may have done something."""
        if luck.random() < 0.12:
            self.write(luck.choice("ab"), luck.choice((b"k", b"k", None)), luck.choice((GOOD, GOOD, REROUTED)))
            self.finish(-1, commit=True)
        if self.stormy and luck.random() < 0.15:
            self.now += luck.randrange(4)
            topic = luck.choice(list(self.broker.topics))
            self.broker.topics[topic] = luck.choice(("present", "present", "missing", "denied"))
        if self.stormy and luck.random() < 0.05:
            self.broker.fail(luck.choice((attempt.lane, luck.randrange(LANES))))
        if self.stormy and luck.random() < 0.03:
            self.broker.heal()
        try:
            if attempt.recovered and attempt.reading is None and attempt.ready is None and luck.random() < 0.4:
                self.look(attempt, luck.choice((1, 2, 3, 5, 9)), luck.randrange(2))
            if luck.random() < 0.1:
                self.hand_over(attempt)
            if attempt.settling and luck.random() < 0.3:
                self.settle_one(attempt)
        except (SessionLost, Superseded):
            self.kill(attempt, settles=False)
            return False
        return self.step(attempt, luck)

    def _session(self, attempt: Attempt) -> None:
        if not attempt.session or attempt.incarnation != self.incarnation:
            raise SessionLost

    def _read_control(self, attempt: Attempt, *_: Any) -> Control:
        self._session(attempt)
        row = self.tables.control[RELAY]
        attempt.confirmed = row.term == attempt.term
        return Control(
            outbox_id=row.outbox_id, term=row.term, system_id=row.system_id, incarnation=str(self.incarnation)
        )

    def _init(self, attempt: Attempt, effect: Init, _: random.Random) -> Blocked | None:
        assert attempt.confirmed, "it fenced others before it knew that it may"
        attempt.confirmed = False
        # Its producer is gone, whatever its lane was.
        attempt.epoch, attempt.lane = self.broker.init(effect.lane) or -1, effect.lane
        return Blocked("a transaction does not end") if attempt.epoch < 0 else None

    def _try_lane(self, _: Attempt, effect: TryLane, __: random.Random) -> bool:
        return self.broker.init(effect.lane) is not None

    def _claim(self, attempt: Attempt, _: WriteClaim, luck: random.Random) -> bool:
        self.broker.staged(attempt.lane, attempt.epoch)
        chance = luck.random()
        if chance > 0.02:
            self.broker.ended(attempt.lane)
            attempt.claims += 1
            self.broker.claims.append(Claim(lane=attempt.lane, claimant=str(attempt.number), number=attempt.claims))
        return chance > 0.04

    def _read_holder(self, attempt: Attempt, _: ReadHolder, luck: random.Random) -> Holder:
        for lane, transaction in list(self.broker.transactions.items()):
            # Its records are in front of the end: nobody reads further before it is decided, by its time-out at last.
            if luck.random() < 0.5:
                raise Cut
            self.broker.epochs[lane] = 1 + max(self.broker.epochs.values())
            self.broker.ended(transaction.lane)
        attempt.last = self.broker.progress[-1:]
        held = holder(self.broker.written_by, self.broker.claims)
        return Holder(lane=held.lane, ours=held.claimant == str(attempt.number))

    def _read_progress(self, attempt: Attempt, effect: ReadProgress, _: random.Random) -> list[Progress]:
        assert attempt.epoch > 0, "what an owner that is not fenced may still commit would be missed"
        return list(self.broker.progress) if effect.whole else attempt.last

    def _settle(self, attempt: Attempt, effect: Settle, _: random.Random) -> None:
        assert effect.progress in self.broker.progress, "only what is committed is settled"
        attempt.settling.append((effect.progress, attempt.leader if self.marking and not effect.recovering else None))

    def settle_one(self, attempt: Attempt) -> None:
        """Let an attempt's settler finish one record."""
        self._session(attempt)
        progress, mark = attempt.settling.pop(0)
        found = self._execute(progress, mark)
        for id_, time in zip(progress.ids, progress.create_times, strict=True):
            # Under an id that came back, another row may be in flight.
            if attempt.in_flight.get(id_) == time:
                del attempt.in_flight[id_]
        if mark is not None and found < len(progress.ids):
            raise SessionLost

    def settle_orphan(self, choice: int) -> None:
        """Let the server finish what a dead client had asked for."""
        self._execute(*self.orphans.pop(choice % len(self.orphans)))

    def mark_late(self, choice: int) -> None:
        """Let the server finish a mark that a dead client had asked for."""
        term, mark, rows = self.late_marks.pop(choice % len(self.late_marks))
        self.tables.mark_rows(rows, mark, RELAY, term)

    def _execute(self, progress: Progress, mark: Mark | None) -> int:
        """Settle, with a mark only what carries it or is dead; return how many rows were found."""
        found = self.tables.settle(fates_of(progress), mark)
        for version in found:
            self.settled[self.incarnation, version] += 1
            named = any(version in zip(p.ids, p.create_times, strict=True) for p in self.broker.progress)
            assert named, f"I7: row {version} was removed, and no committed record speaks of it"
        return len(found)

    def _await_settled(self, attempt: Attempt, effect: AwaitSettled, luck: random.Random) -> bool:
        if effect.within_seconds is not None and attempt.settling and luck.random() < 0.1:
            return False
        while attempt.settling:
            self.settle_one(attempt)
        return True

    def _recovered(self, attempt: Attempt, *_: Any) -> None:
        attempt.recovered = True

    # Reading ahead

    def look(self, attempt: Attempt, rows: int, turn: int) -> None:
        """The read-ahead's thread reads the head; what it found is handed over later."""
        self._session(attempt)
        wanted = self._wanted(attempt, rows, turn)
        if self.marking:
            found = self.tables.mark(wanted, attempt.leader, RELAY, attempt.term)
            if attempt.in_flight.keys() & {id_ for id_, _, _ in found}:
                raise SessionLost
        else:
            found = self.tables.pending(wanted)
        attempt.reading = ReadLot(attempt.generation, attempt.epoch, [self._row(*row) for row in found])

    def _wanted(self, attempt: Attempt, rows: int, turn: int) -> Wanted:
        return Wanted(
            buckets=((0, 1), (1, 0))[turn % 2],
            rows=rows,
            batch_bytes=1_000_000,
            largest_bytes=1_000_000,
            in_flight={
                **({} if self.marking else attempt.in_flight),
                **dict(row for row, until in attempt.held_rows.items() if until > self.now),
            },
            held_topics={topic for topic, until in attempt.held.items() if until > self.now},
            hot_keys=()
            if self.merging
            else (*attempt.hot, *(key for key, until in attempt.held_streams.items() if until > self.now)),
            by_id=self.merging,
        )

    def hand_over(self, attempt: Attempt) -> None:
        """The read-ahead's thread offers what it read, unless it is forgotten by now."""
        lot, attempt.reading = attempt.reading, None
        if lot is not None and lot.rows and lot.generation == attempt.generation:
            attempt.in_flight.update((row.id, row.create_time) for row in lot.rows)
            attempt.ready = lot

    def _take(self, attempt: Attempt, effect: Take, luck: random.Random) -> Any:
        assert attempt.recovered, "nothing is read before recovery is over"
        attempt.hot = effect.hot
        if attempt.stopping:
            return None
        if not effect.wait and attempt.ready is None:
            return NOTHING_YET
        if attempt.ready is None:
            if attempt.reading is None:
                self.look(attempt, luck.choice((1, 2, 3, 5, 9)), luck.randrange(2))
            self.hand_over(attempt)
        lot, attempt.ready = attempt.ready, None
        if lot is None:
            # A real reader answers after a moment; nothing has come of the step.
            return NOTHING_YET if luck.random() < 0.5 else _WAIT
        assert lot.epoch == attempt.epoch, "a row is sent only by the producer whose init precedes its read"
        if luck.random() < 0.02:
            failing = FailingTransform(topics=frozenset("ab"), why="it is out of order")
            return Batch(rows=RowList(), generation=lot.generation, failing=failing)
        return Batch(rows=bundled(lot.rows), generation=lot.generation)

    def _row(self, id_: int, time: int, message: Message) -> Row:
        plan: Record | Filtered | Dead
        match message.nature:
            case 3:
                plan = FILTERED
            case 4:
                plan = dead(Kind.MALFORMED, "it is malformed")
            case nature:
                partition = PARTITIONS if nature == NO_PARTITION else -1
                key = None if message.sent_stream is None else message.sent_stream[1]
                plan = Record(message.sent_topic, str(message.number).encode(), key, partition, 0, None)
        return Row(id_, time, message.topic, message.key, plan)

    def _hold(self, attempt: Attempt, effect: Hold, _: random.Random) -> None:
        until = self.now + HELD_SECONDS
        attempt.held.update(dict.fromkeys(effect.topics, until))
        attempt.held_streams.update(dict.fromkeys(effect.streams, until))
        attempt.held_rows.update(dict.fromkeys(effect.behind.items(), self.now + 30 * HELD_SECONDS))
        attempt.held_rows.update(dict.fromkeys(effect.rows.items(), until))

    def _release(self, attempt: Attempt, *_: Any) -> None:
        attempt.held.clear()
        attempt.held_streams.clear()
        attempt.held_rows.clear()

    def _renew(self, attempt: Attempt, *_: Any) -> None:
        attempt.generation += 1
        attempt.in_flight.clear()
        attempt.ready = None

    # Publishing

    def _survey(self, attempt: Attempt, effect: Survey, luck: random.Random) -> Surveyed:
        for topic in effect.topics:
            if topic not in attempt.surveyed or luck.random() < 0.6:
                # Otherwise what was heard some time ago is believed.
                attempt.surveyed[topic] = self._standing(topic)
        return Surveyed(now=float(self.now), topics={topic: attempt.surveyed[topic] for topic in effect.topics})

    def _standing(self, topic: str) -> TopicStatus:
        if self.broker.topics[topic] == "missing":
            return Unavailable(refusal=Refusal.TOPIC, why=f"{topic} is not there")
        return Available(partitions=PARTITIONS)

    def _open_ahead(self, attempt: Attempt, _: OpenAhead, luck: random.Random) -> bool:
        assert attempt.recovered, "a transaction is open before recovery is over"
        assert attempt.confirmed, "it goes on without having looked whether it is still its turn"
        if attempt.lane in self.broker.blocked:
            return luck.random() < 0.5
        if attempt.lane not in self.broker.transactions and luck.random() < 0.5:
            self.broker.staged(attempt.lane, attempt.epoch)
        elif luck.random() < 0.2:
            self._close_ahead(attempt)
        return True

    def _close_ahead(self, attempt: Attempt, *_: Any) -> None:
        """End a transaction that was opened ahead, as one that carries nothing."""
        opened = self.broker.transactions.get(attempt.lane)
        if opened is not None and attempt.epoch == self.broker.epochs[attempt.lane]:
            assert not opened.records, "a transaction that carries records is ended without its progress"
            self._committed(opened)

    def _begin(self, attempt: Attempt, *_: Any) -> None:
        assert attempt.confirmed, "it goes on without having looked whether it is still its turn"
        opened = self.broker.transactions.get(attempt.lane)
        assert opened is None or opened.epoch != attempt.epoch or not opened.records, "records of another transaction"
        attempt.note = None

    def _reset(self, attempt: Attempt, effect: Reset, _: random.Random) -> None:
        self._session(attempt)
        self.tables.reset(effect.ids, attempt.leader, RELAY, attempt.term)

    def _produce(self, attempt: Attempt, effect: Produce, _: random.Random) -> list[Fault]:
        attempt.queue = [(place, row.plan) for place, row in enumerate(effect.rows) if isinstance(row.plan, Record)]
        if self.marking:
            streams = [row.stream for row in effect.rows if row.stream is not None]
            assert len(set(streams)) == len(streams), f"two of a key in a wave: {streams}"
            sent = [(each.topic, each.key) for _, each in attempt.queue if each.key is not None]
            assert len(set(sent)) == len(sent), f"two of a key that is sent in a wave: {sent}"
        return []

    def _flush(self, attempt: Attempt, effect: Flush, luck: random.Random) -> list[Fault]:
        if attempt.lane in self.broker.blocked:
            # The broker takes no partition into a transaction before the last one has ended.
            attempt.queue = []
            return [Fault(kind=None, why="no answer")]
        return self._flush_to(attempt, effect, luck)

    def _flush_to(self, attempt: Attempt, _: Flush, luck: random.Random) -> list[Fault]:
        transaction = self.broker.staged(attempt.lane, attempt.epoch)
        faults: list[Fault] = []
        for place, record in attempt.queue:
            if self.marking and luck.random() < 0.02:
                # What is in the client's hands is gone with it.
                raise Cut
            fault = self._fault(place, record)
            chance = luck.random() if self.marking and fault is None else 1.0
            if chance < NAMELESS:
                fault = Fault(kind=None, why="not now", place=place if chance < DENIED else None)
            if fault is None or UNTAKEN <= chance < NAMELESS:
                transaction.records.append(record)
                if self.marking:
                    self._see(self.messages[int(record.value or b"")])
            if fault is not None:
                faults.append(fault)
        if any(fault.place is None and fault.topic is None for fault in faults) and luck.random() < 0.5:
            # One that is not named takes the others of its batch with it.
            faults = [Fault(kind=Kind.REJECTED, why="a batch was refused")]
        for fault in faults:
            if fault.topic is not None:
                attempt.surveyed.pop(fault.topic, None)
        attempt.queue = []
        return faults

    def _fault(self, place: int, record: Record) -> Fault | None:
        standing = self.broker.topics[record.topic]
        if standing != "present":
            kind = Kind.NO_TOPIC if standing == "missing" else Kind.NOT_AUTHORISED
            return Fault(kind=kind, why=f"{record.topic} is {standing}", topic=record.topic)
        match self.messages[int(record.value or b"")].nature:
            case 1:
                return Fault(kind=Kind.REJECTED, why="it is poison", place=place)
            case 2:
                return Fault(kind=Kind.REJECTED, why="something is poison")
        return None

    def _note(self, attempt: Attempt, effect: WriteProgress, luck: random.Random) -> bool:
        assert isinstance(effect.progress, Progress)
        attempt.note = effect.progress
        return not self.marking or luck.random() > (0.3 if effect.despite else 0.02)

    def _commit(self, attempt: Attempt, _: Commit, luck: random.Random) -> bool:
        transaction = self.broker.staged(attempt.lane, attempt.epoch)
        if attempt.note is not None:
            transaction.notes.append(attempt.note)
        transaction.claim = Claim(lane=attempt.lane, claimant=str(attempt.number))
        chance = luck.random()
        if chance < 0.05:
            # It never reaches the broker, or not while its sender lives.
            transaction.ending = luck.random() < 0.6
            if luck.random() < 0.5:
                return False
            raise Cut
        self._committed(transaction)
        if chance < 0.12:
            if luck.random() < 0.5:
                return False
            raise Cut
        return True

    def _abandon(self, attempt: Attempt, *_: Any) -> None:
        attempt.note = None
        if attempt.epoch == self.broker.epochs.get(attempt.lane) and attempt.lane in self.broker.transactions:
            self.broker.ended(attempt.lane)

    def late_commit(self) -> None:
        """What a dead attempt sent last arrives."""
        for transaction in self.broker.late():
            self._committed(transaction)

    def _committed(self, transaction: Transaction) -> None:
        self.broker.ended(transaction.lane)
        self.broker.progress += transaction.notes
        if transaction.notes:
            self.broker.written_by, self.broker.claims = transaction.claim, []
        for progress in transaction.notes:
            for id_, time, fate in zip(progress.ids, progress.create_times, progress.fates, strict=True):
                message = self.by_version[id_, time]
                if isinstance(fate, Filtered):
                    self.filtered.add(message.number)
                elif isinstance(fate, Dead):
                    self.condemned.add(message.number)
        for record in transaction.records:
            self._read(self.messages[int(record.value or b"")])

    # Judgement

    def _read(self, message: Message) -> None:
        """A reader of committed records gets this one next."""
        number = message.number
        assert message.committed is not None, f"I2: {number} was read, and nobody committed it"
        self.times_sent[number] += 1
        if self.marking:
            return
        assert self.times_sent[number] == 1, f"I3: {number} was read twice"
        for earlier in self._preceding(message):
            assert message.committed > earlier.inserted, f"I4: {number} was read behind {earlier.number}"
        self.sent.append(message)
        self.sent_as.append(message.sent_stream)

    def _see(self, message: Message) -> None:
        """A reader of everything gets this one next: again, perhaps, but never behind what follows it."""
        number = message.number
        assert message.committed is not None, f"I2: {number} was read, and nobody committed it"
        self.repeated += message in self.sent
        for earlier in self._preceding(message):
            assert message.committed > earlier.inserted, f"I3: {number} was read behind {earlier.number}"
            together = message.committed == earlier.committed
            assert not together or number >= earlier.number, f"I3: {number} was read behind {earlier.number}"
        self.sent.append(message)
        self.sent_as.append(message.sent_stream)

    def _preceding(self, message: Message) -> Iterator[Message]:
        """Yield what was read before it of its key: the stored one or, with a transform, the one that is sent."""
        if message.stream is None or message.displaced:
            return
        for earlier, sent_as in zip(self.sent, self.sent_as, strict=True):
            same = earlier.stream == message.stream
            if self.merging:
                same = sent_as == message.sent_stream and (same or self.merged_in_order)
            if same and not earlier.displaced:
                yield earlier

    def _has_fate(self, message: Message) -> bool:
        number = message.number
        return bool(self.times_sent[number]) or number in self.filtered or number in self.condemned

    def judge(self) -> None:
        """What holds at every moment."""
        twice = [version for (_, version), times in self.settled.items() if times > 1]
        assert not twice, f"I7: settled twice: {twice}"
        waiting = {message.number for _, message in self.tables.outbox.values()}
        waiting |= {entry.message.number for entry in self.tables.dead.values()}
        for message in self.messages:
            if message.committed is not None and not message.erased:
                assert message.number in waiting or self._has_fate(message), f"I1: {message.number} is gone"

    def judge_at_rest(self) -> None:
        """What holds when everything has healed and nothing is left to do."""
        self.judge()
        assert not self.tables.outbox, f"I5: still there: {sorted(self.tables.outbox)}"
        dead = {entry.message.number for entry in self.tables.dead.values()}
        for message in self.messages:
            if message.committed is not None and not message.erased:
                number = message.number
                sent = min(1, self.times_sent[number]) if self.marking else self.times_sent[number]
                fates = sent + (number in self.filtered) + (number in dead)
                discarded = number in self.condemned
                # At least once, a record may be delivered though the client was told otherwise, and be refused later.
                both = self.marking and bool(sent) and number in dead
                assert fates == 1 or both or (not fates and discarded) or (fates and message.not_again), (
                    f"I1: {number} has {fates} fates"
                )

    _doings: dict[type[Effect], Callable[..., Any]] = {  # noqa: RUF012
        ReadControl: _read_control,
        Init: _init,
        TryLane: _try_lane,
        WriteClaim: _claim,
        ReadHolder: _read_holder,
        ReadProgress: _read_progress,
        Settle: _settle,
        AwaitSettled: _await_settled,
        Recovered: _recovered,
        Take: _take,
        Survey: _survey,
        OpenAhead: _open_ahead,
        CloseAhead: _close_ahead,
        Begin: _begin,
        Produce: _produce,
        Flush: _flush,
        WriteProgress: _note,
        Commit: _commit,
        Abandon: _abandon,
        Hold: _hold,
        Release: _release,
        Lift: lambda *_: None,
        ReportRejected: lambda *_: None,
        WaitForTransform: lambda *_: None,
        DiscardReadAhead: _renew,
        Reset: _reset,
    }

    # Rest

    def drain(self, luck: random.Random) -> None:
        """Heal everything, let a new leader work, and let every zombie take its last steps."""
        zombies = list(self.attempts)
        self.broker.heal()
        for topic in self.broker.topics:
            self.broker.topics[topic] = "present"
        while self.writers:
            self.finish(0, commit=True)
        self.take_over()
        self._work_off(luck)
        for zombie in zombies:
            for _ in range(100):
                if zombie not in self.attempts or not self.step(zombie, luck):
                    break
        self._work_off(luck)
        while self.orphans:
            self.settle_orphan(0)
        while self.late_marks:
            self.mark_late(0)

    def _work_off(self, luck: random.Random) -> None:
        """Run attempts until nothing is left; whoever waits for a dead row gets it mended."""
        # Seen: 3,000 steps for 145 batches, most of them with a dead row that blocks its key.
        for _ in range(15_000):
            attempt = next((each for each in self.attempts if each.term == self.terms[-1]), None)
            if attempt is None:
                if self._rested():
                    return
                self.launch(self.terms[-1])
            elif not self.step(attempt, luck):
                self.now += HELD_SECONDS
                attempt.stopping = self._rested() or luck.random() < 0.2
        raise AssertionError(f"I5: no end: {sorted(self.tables.outbox)} {self.broker.progress[-1:]}")

    def _rested(self) -> bool:
        for version, entry in sorted(self.tables.dead.items(), key=lambda item: item[0]):
            if entry.fate.blocking and (entry.message.not_again or version[0] in self.tables.outbox):
                self.discard(version)
            elif entry.fate.blocking:
                entry.message.nature = GOOD
                self._put_back(version)
        return not self.tables.outbox


_WAIT = object()


def _bucket(id_: int, message: Message) -> int:
    return id_ % 2 if message.key is None else message.key[0] % 2
