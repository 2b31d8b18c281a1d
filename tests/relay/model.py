"""A model of Kafka, of the outbox's database and of the code around the protocol. Any part may stop at any step.

1. The model has one shard. For each of its ids, the broker keeps one epoch and at most one open transaction. Staged
   records are read only once they are committed; an older epoch is fenced. A commit may arrive after its sender died. A
   decided transaction may fail to end: its id then accepts neither an init nor a transaction until it is healed.
2. The database keeps its tables in a `TableModel`; writers get ids when they insert and commit later, in any order.
   It can be restored to a snapshot, under a new incarnation: every session ends, and ids are assigned again.
3. An attempt is the protocol's generator, its session, its epoch and its read-ahead. It may be superseded and go on at
   any later step.
4. Events are kept by message, whichever row held it, and judged as they happen. The judge looks at the records of a
   reader of committed records or, with marks, of a reader of all records.
5. With marks, a read marks the rows that it finds, under the term. A mark that a dead client requested may come late.
   A record may fail before it is sent, or be reported as failed, alone or with its whole transaction. The outcome of a
   commit may be unknown.
"""

import itertools
import math
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
from thresher.db.waits import Waits
from thresher.delivery import exactly_once
from thresher.delivery.batch import NOTHING_YET, Batch, FailingTransform
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.claims import IDS_PER_SHARD, Claim, holder
from thresher.delivery.effects import (
    Abandon,
    AwaitSettled,
    Begin,
    Blocked,
    CheckTransactionEnded,
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
    ListTopics,
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
    Sweep,
    Take,
    Unhold,
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
# The nature of a message: most can be sent.
GOOD, NAMED_POISON, POISON, FILTERED_OUT, MALFORMED, NO_PARTITION, REROUTED, MERGED = range(8)

RELAY = "relay"
Mark = tuple[int, int]
# Upper bounds of a random number, for a record of a wave: refused; delivered and reported as failed; delivered and
# reported as failed without naming the record.
UNTAKEN, DENIED, NAMELESS = 0.03, 0.06, 0.08


def bundled(rows: Sequence[Row]) -> Rows:
    """Return rows as columns if all are sent as they are stored, as a real batch does."""
    if not all(isinstance(row.plan, Record) and (row.plan.topic, row.plan.key) == (row.topic, row.key) for row in rows):
        return RowList(rows)
    if RowList(rows).has_timestamps:
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
    """The broker has a newer epoch."""


class SessionLost(Exception):
    """The database has closed the session."""


class Cut(Exception):
    """The attempt's process is dead."""


@dataclass
class Message:
    """A message of an application, and its fate. Times are the model's own, one tick per event."""

    number: int
    topic: str
    key: bytes | None
    nature: int
    inserted: int
    committed: int | None = None
    # The database no longer has it: it was restored to before the commit, or the table was truncated.
    erased: bool = False
    versions: list[Version] = field(default_factory=list)
    # It was replayed although it did not block its key: its order is lost.
    displaced: bool = False
    # A restored database may not know that it was sent after a replay: another replay would send it twice.
    not_again: bool = False

    @property
    def stream(self) -> Stream | None:
        return None if self.key is None else (self.topic, self.key)

    @property
    def sent_stream(self) -> Stream | None:
        """The topic and key under which it is sent. A transform may merge topics, or keys."""
        return None if self.key is None else (self.sent_topic, b"m" if self.nature == MERGED else self.key)

    @property
    def sent_topic(self) -> str:
        return "x" if self.nature == REROUTED else self.topic

    def mend(self) -> None:
        """Repair what makes it dead. It is sent where it was to be sent: elsewhere, later rows need not wait for it."""
        if self.nature not in {REROUTED, MERGED}:
            self.nature = GOOD


@dataclass
class Transaction:
    """The records staged at the broker through a transactional id, under an epoch."""

    id_index: int
    epoch: int
    records: list[Record] = field(default_factory=list)
    notes: list[Progress] = field(default_factory=list)
    # The commit was sent and has not arrived. Its sender may be dead.
    ending: bool = False
    claim: Claim | None = None


@dataclass
class Broker:
    """One shard's transactional ids, the topics, and one progress partition."""

    # By id index. No two epochs are the same.
    epochs: dict[int, int] = field(default_factory=dict)
    transactions: dict[int, Transaction] = field(default_factory=dict)
    # `failing`: ids whose open transaction has a partition that cannot be written. `blocked`: ids whose last
    # transaction cannot end for that reason.
    failing: set[int] = field(default_factory=set)
    blocked: set[int] = field(default_factory=set)
    progress: list[Progress] = field(default_factory=list)
    # The claim of the last progress record's writer, and the claims since that record.
    written_by: Claim | None = None
    claims: list[Claim] = field(default_factory=list)
    # By topic: present, missing or denied.
    topics: dict[str, str] = field(default_factory=dict)

    def init(self, id_index: int) -> int | None:
        """Return a new epoch; None while the id's last transaction has not ended."""
        if id_index in self.blocked:
            return None
        self.epochs[id_index] = 1 + max(self.epochs.values(), default=0)
        if self.transactions.pop(id_index, None) is not None:
            self.ended(id_index)
        return None if id_index in self.blocked else self.epochs[id_index]

    def ended(self, id_index: int) -> None:
        """End an id's decided transaction; if one of its partitions fails, the id is blocked."""
        self.transactions.pop(id_index, None)
        if id_index in self.failing:
            self.failing.discard(id_index)
            self.blocked.add(id_index)

    def staged(self, id_index: int, epoch: int) -> Transaction:
        if epoch != self.epochs.get(id_index):
            raise Fenced
        return self.transactions.setdefault(id_index, Transaction(id_index, epoch))

    def fail(self, id_index: int) -> None:
        """Let a partition of an id's transaction fail: it cannot be written any more."""
        (self.failing if id_index in self.transactions else self.blocked).add(id_index)

    def late(self) -> list[Transaction]:
        """Return the transactions whose commit was sent and has not arrived."""
        return [transaction for transaction in self.transactions.values() if transaction.ending]

    def heal(self) -> None:
        self.failing.clear()
        self.blocked.clear()


@dataclass
class ReadBatch:
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
    id_index: int = 0
    claims: int = 0
    # The last progress record at the time when the claims were read.
    last: list[Progress] = field(default_factory=list)
    session: bool = True
    # Whether the control row named its term at the last look.
    confirmed: bool = False
    recovered: bool = False
    stopping: bool = False
    # The client's queue: records wait here until they are flushed.
    queue: list[tuple[int, Record]] = field(default_factory=list)
    note: Progress | None = None
    # Progress records to settle, each with the mark under which its rows were sent.
    settling: list[tuple[Progress, Mark | None]] = field(default_factory=list)
    hot: tuple[Stream, ...] = ()
    generation: int = 0
    in_flight: dict[int, int] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    # Topics whose rows a sweep reads; and topics of sweeps that have ended.
    sweeping: frozenset[str] = frozenset()
    swept: frozenset[str] = frozenset()
    held_streams: dict[Stream, int] = field(default_factory=dict)
    held_rows: dict[tuple[int, int], int] = field(default_factory=dict)
    reading: ReadBatch | None = None
    ready: ReadBatch | None = None
    surveyed: dict[str, TopicStatus] = field(default_factory=dict)

    @property
    def leader(self) -> Mark:
        return (self.number, self.generation)


class World:
    """The whole model and all its events. Each event is judged: a broken promise raises `AssertionError`."""

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
        # With a transform, rows are read by id. A key that a dead row blocks does not hold other keys.
        self.merging = merging
        self.merged_in_order = merging and poison is Poison.DEAD_LETTER
        # Topics are created, deleted and denied while attempts run.
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
        # What waits, and when it was kept.
        self.kept: tuple[Waits, int] | None = None
        self.ticks = itertools.count(1)
        self.terms: list[str] = []
        self.attempts: list[Attempt] = []
        self.numbers = itertools.count(1)
        self.writers: list[list[tuple[int, int, Message]]] = []
        self.snapshots: list[TableModel[Message]] = []
        # Settle statements that were running when their client died: the server may still complete them.
        self.orphans: list[tuple[Progress, Mark | None]] = []
        # The same for marks: term, mark, rows.
        self.late_marks: list[tuple[str, Mark, list[int]]] = []
        # The events so far.
        self.messages: list[Message] = []
        self.by_version: dict[Version, Message] = {}
        self.sent: list[Message] = []
        # The topic and key under which each message was sent.
        self.sent_as: list[Stream | None] = []
        self.repeated = 0
        self.times_sent: Counter[int] = Counter()
        self.filtered: set[int] = set()
        self.poisoned: set[int] = set()
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
        """Put a dead row back into the outbox, under its id."""
        found = [
            (version, entry)
            for version, entry in sorted(self.tables.dead.items(), key=lambda item: item[0])
            if not entry.message.not_again and version[0] not in self.tables.outbox
        ]
        if not found:
            return
        version, entry = found[choice % len(found)]
        if mended:
            entry.message.mend()
        entry.message.displaced |= not entry.fate.blocking
        self._put_back(version)

    def _put_back(self, version: Version) -> None:
        tick = next(self.ticks)
        (message,) = self.tables.replay([version], tick)
        self._stored(version[0], tick, message)

    def discard(self, version: Version) -> None:
        """Drop a dead row: an operator decides that it is not to be sent."""
        del self.tables.dead[version]

    def restore(self, choice: int) -> None:
        """Restore an earlier state of the database: sessions and their open transactions end."""
        self.incarnation += 1
        self.writers.clear()
        self.orphans.clear()
        self.late_marks.clear()
        place = choice % len(self.snapshots)
        self.tables = self.snapshots[place].snapshot()
        # Later backups belong to a history that no longer exists.
        del self.snapshots[place + 1 :]
        there = {message.number for _, message in self.tables.outbox.values()}
        there |= {entry.message.number for entry in self.tables.dead.values()}
        for message in self.messages:
            gone = message.committed is not None and message.number not in there
            # A truncated row that the restore brings back may be sent after rows that were written in between.
            message.displaced |= message.erased and not gone
            message.erased |= gone and not self._has_fate(message)
            message.not_again |= len(message.versions) > 1

    def truncate(self) -> None:
        """Truncate the outbox, and restart its ids."""
        for _, message in self.tables.outbox.values():
            message.erased = True
        for entry in self.tables.dead.values():
            # Its id is no longer lower than the ids of its key's later rows.
            entry.message.not_again = True
        self.tables.truncate()

    def take_over(self, *, ends_sessions: bool = False) -> None:
        """Let a new leader write its term."""
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
        """End a process for good; the server may still complete its running statement."""
        self.attempts.remove(attempt)
        if settles and attempt.session and attempt.incarnation == self.incarnation:
            if attempt.settling:
                self.orphans.append(attempt.settling[0])
            if self.marking and attempt.recovered:
                rows = self.tables.pending(self._wanted(attempt, 3, 0), attempt.leader)
                self.late_marks.append((attempt.term, attempt.leader, [id_ for id_, _, _ in rows]))

    def step(self, attempt: Attempt, luck: random.Random) -> bool:
        """Do an attempt's next effect; return False if it has to wait."""
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
        """Do one step; before it, a writer, the attempt's reader or its settler may act."""
        if luck.random() < 0.12:
            self.write(luck.choice("ab"), luck.choice((b"k", b"k", None)), luck.choice((GOOD, GOOD, REROUTED)))
            self.finish(-1, commit=True)
        if self.stormy and luck.random() < 0.15:
            self.now += luck.randrange(4)
            topic = luck.choice(list(self.broker.topics))
            self.broker.topics[topic] = luck.choice(("present", "present", "missing", "denied"))
        if self.stormy and luck.random() < 0.05:
            self.broker.fail(luck.choice((attempt.id_index, luck.randrange(IDS_PER_SHARD))))
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
        assert attempt.confirmed, "it fenced others before it had confirmed its term"
        attempt.confirmed = False
        # The attempt's former producer is closed, on whichever id it was.
        attempt.epoch, attempt.id_index = self.broker.init(effect.id_index) or -1, effect.id_index
        return Blocked("a transaction of the id does not end") if attempt.epoch < 0 else None

    def _check_transaction_ended(self, _: Attempt, effect: CheckTransactionEnded, __: random.Random) -> bool:
        return self.broker.init(effect.id_index) is not None

    def _claim(self, attempt: Attempt, _: WriteClaim, luck: random.Random) -> bool:
        self.broker.staged(attempt.id_index, attempt.epoch)
        chance = luck.random()
        if chance > 0.02:
            self.broker.ended(attempt.id_index)
            attempt.claims += 1
            self.broker.claims.append(
                Claim(id_index=attempt.id_index, claimant=str(attempt.number), number=attempt.claims)
            )
        return chance > 0.04

    def _read_holder(self, attempt: Attempt, _: ReadHolder, luck: random.Random) -> Holder:
        for id_index, transaction in list(self.broker.transactions.items()):
            # An open transaction hides all records behind its first one, until it is decided, at the latest by its
            # time-out.
            if luck.random() < 0.5:
                raise Cut
            self.broker.epochs[id_index] = 1 + max(self.broker.epochs.values())
            self.broker.ended(transaction.id_index)
        attempt.last = self.broker.progress[-1:]
        held = holder(self.broker.written_by, self.broker.claims)
        return Holder(id_index=held.id_index, ours=held.claimant == str(attempt.number))

    def _read_progress(self, attempt: Attempt, effect: ReadProgress, _: random.Random) -> list[Progress]:
        assert attempt.epoch > 0, "progress was read before the last owner was fenced, who may still commit"
        return list(self.broker.progress) if effect.whole else attempt.last

    def _settle(self, attempt: Attempt, effect: Settle, _: random.Random) -> None:
        assert effect.progress in self.broker.progress, "a progress record was settled that is not committed"
        attempt.settling.append((effect.progress, attempt.leader if self.marking and not effect.recovering else None))

    def settle_one(self, attempt: Attempt) -> None:
        """Let an attempt's settler finish one progress record."""
        self._session(attempt)
        progress, mark = attempt.settling.pop(0)
        found = self._execute(progress, mark)
        for id_, time in zip(progress.ids, progress.create_times, strict=True):
            # Under a reused id, another row may be in flight.
            if attempt.in_flight.get(id_) == time:
                del attempt.in_flight[id_]
        if mark is not None and found < len(progress.ids):
            raise SessionLost

    def settle_orphan(self, choice: int) -> None:
        """Let the server complete a settle statement of a dead client."""
        self._execute(*self.orphans.pop(choice % len(self.orphans)))

    def mark_late(self, choice: int) -> None:
        """Let the server complete a mark statement of a dead client."""
        term, mark, rows = self.late_marks.pop(choice % len(self.late_marks))
        self.tables.mark_rows(rows, mark, RELAY, term)

    def _execute(self, progress: Progress, mark: Mark | None) -> int:
        """Settle a progress record; with a mark, only marked or dead rows. Return how many rows were found."""
        found = self.tables.settle(fates_of(progress), mark)
        for version in found:
            self.settled[self.incarnation, version] += 1
            named = any(version in zip(p.ids, p.create_times, strict=True) for p in self.broker.progress)
            assert named, f"I7: row {version} was removed, and no committed progress record names it"
        return len(found)

    def _await_settled(self, attempt: Attempt, effect: AwaitSettled, luck: random.Random) -> bool:
        if effect.within_seconds is not None and attempt.settling and luck.random() < 0.1:
            return False
        while attempt.settling:
            self.settle_one(attempt)
        return True

    def _recovered(self, attempt: Attempt, *_: Any) -> Waits | None:
        attempt.recovered = True
        if self.kept is None:
            return None
        waits, at = self.kept
        ages = {topic: seconds + self.now - at for topic, seconds in waits.topics.items()}
        return Waits(topics=ages, rows={row: seconds + self.now - at for row, seconds in waits.rows.items()})

    def _keep_waits(self, attempt: Attempt, effect: KeepWaits, _: random.Random) -> None:
        self._session(attempt)
        if attempt.term == self.terms[-1]:
            self.kept = effect.waits, self.now

    # Read-ahead

    def look(self, attempt: Attempt, rows: int, turn: int) -> None:
        """Let the read-ahead's thread read the head; `hand_over` offers the rows later."""
        self._session(attempt)
        sweeps = bool(attempt.sweeping) and turn == 1
        wanted = self._wanted(attempt, rows, turn, among=sweeps)
        if self.marking:
            found = self.tables.mark(wanted, attempt.leader, RELAY, attempt.term)
            if attempt.in_flight.keys() & {id_ for id_, _, _ in found}:
                raise SessionLost
        else:
            found = self.tables.pending(wanted)
        if sweeps and not found:
            for topic in attempt.sweeping:
                attempt.held.pop(topic, None)
            attempt.swept, attempt.sweeping = attempt.swept | attempt.sweeping, frozenset()
        attempt.reading = ReadBatch(attempt.generation, attempt.epoch, [self._row(*row) for row in found])

    def _wanted(self, attempt: Attempt, rows: int, turn: int, *, among: bool = False) -> Wanted:
        return Wanted(
            buckets=((0, 1), (1, 0))[turn % 2],
            rows=rows,
            batch_bytes=1_000_000,
            largest_bytes=1_000_000,
            in_flight={
                **({} if self.marking else attempt.in_flight),
                **dict(row for row, until in attempt.held_rows.items() if until > self.now),
            },
            held_topics=attempt.sweeping
            if among
            else {topic for topic, until in attempt.held.items() if until > self.now},
            among=among,
            hot_keys=()
            if self.merging
            else (*attempt.hot, *(key for key, until in attempt.held_streams.items() if until > self.now)),
            by_id=self.merging,
        )

    def hand_over(self, attempt: Attempt) -> None:
        """Let the read-ahead's thread offer the rows that it read, unless their generation is over."""
        batch, attempt.reading = attempt.reading, None
        if batch is not None and batch.rows and batch.generation == attempt.generation:
            attempt.in_flight.update((row.id, row.create_time) for row in batch.rows)
            attempt.ready = batch

    def _take(self, attempt: Attempt, effect: Take, luck: random.Random) -> Any:
        assert attempt.recovered, "rows were taken before recovery was over"
        attempt.hot = effect.hot
        if attempt.stopping:
            return None
        if not effect.wait and attempt.ready is None:
            return NOTHING_YET
        if attempt.ready is None:
            if attempt.reading is None:
                self.look(attempt, luck.choice((1, 2, 3, 5, 9)), luck.randrange(2))
            self.hand_over(attempt)
        batch, attempt.ready = attempt.ready, None
        if batch is None:
            # A real reader answers after a moment. Without rows, the step has no effect.
            return NOTHING_YET if luck.random() < 0.5 else _WAIT
        assert batch.epoch == attempt.epoch, "a row was read before the init of the producer that sends it"
        if luck.random() < 0.02:
            failing = FailingTransform(topics=frozenset("ab"), why="it is out of order")
            return Batch(rows=RowList(), generation=batch.generation, failing=failing)
        return Batch(rows=bundled(batch.rows), generation=batch.generation)

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
        attempt.held.update(dict.fromkeys(effect.lasting, math.inf))
        attempt.held_streams.update(dict.fromkeys(effect.streams, until))
        attempt.held_rows.update(dict.fromkeys(effect.behind.items(), self.now + 30 * HELD_SECONDS))
        attempt.held_rows.update(dict.fromkeys(effect.rows.items(), until))

    def _unhold(self, attempt: Attempt, effect: Unhold, _: random.Random) -> None:
        for topic in effect.topics:
            attempt.held.pop(topic, None)
        attempt.sweeping -= effect.topics

    def _sweep(self, attempt: Attempt, effect: Sweep, _: random.Random) -> frozenset[str]:
        swept, attempt.swept = attempt.swept, frozenset()
        attempt.sweeping = attempt.sweeping or effect.topics - swept
        return swept

    def _release(self, attempt: Attempt, *_: Any) -> None:
        attempt.held.clear()
        attempt.held_streams.clear()
        attempt.held_rows.clear()

    def _discard_read_ahead(self, attempt: Attempt, *_: Any) -> None:
        attempt.generation += 1
        attempt.in_flight.clear()
        attempt.ready = None

    # Publishing

    def _survey(self, attempt: Attempt, effect: Survey, luck: random.Random) -> Surveyed:
        for topic in effect.topics:
            if topic not in attempt.surveyed or luck.random() < 0.6:
                # Otherwise an older answer is used.
                attempt.surveyed[topic] = self._status(topic)
        return Surveyed(now=float(self.now), topics={topic: attempt.surveyed[topic] for topic in effect.topics})

    def _status(self, topic: str) -> TopicStatus:
        if self.broker.topics[topic] == "missing":
            return Unavailable(refusal=Refusal.TOPIC, why=f"{topic} does not exist")
        return Available(partitions=PARTITIONS)

    def _open_ahead(self, attempt: Attempt, _: OpenAhead, luck: random.Random) -> bool:
        assert attempt.recovered, "a transaction was opened before recovery was over"
        assert attempt.confirmed, "it began a transaction without having confirmed its term"
        if attempt.id_index in self.broker.blocked:
            return luck.random() < 0.5
        if attempt.id_index not in self.broker.transactions and luck.random() < 0.5:
            self.broker.staged(attempt.id_index, attempt.epoch)
        elif luck.random() < 0.2:
            self._close_ahead(attempt)
        return True

    def _close_ahead(self, attempt: Attempt, *_: Any) -> None:
        """End a transaction that was opened ahead and is empty."""
        opened = self.broker.transactions.get(attempt.id_index)
        if opened is not None and attempt.epoch == self.broker.epochs[attempt.id_index]:
            assert not opened.records, "a transaction with records was ended without its progress record"
            self._committed(opened)

    def _begin(self, attempt: Attempt, *_: Any) -> None:
        assert attempt.confirmed, "it began a transaction without having confirmed its term"
        opened = self.broker.transactions.get(attempt.id_index)
        assert opened is None or opened.epoch != attempt.epoch or not opened.records, (
            "the open transaction has records of an earlier batch"
        )
        attempt.note = None

    def _reset(self, attempt: Attempt, effect: Reset, _: random.Random) -> None:
        self._session(attempt)
        self.tables.reset(effect.ids, attempt.leader, RELAY, attempt.term)

    def _produce(self, attempt: Attempt, effect: Produce, _: random.Random) -> list[Fault]:
        attempt.queue = [(place, row.plan) for place, row in enumerate(effect.rows) if isinstance(row.plan, Record)]
        if self.marking:
            streams = [row.stream for row in effect.rows if row.stream is not None]
            assert len(set(streams)) == len(streams), f"two rows of a stored key in a wave: {streams}"
            sent = [(each.topic, each.key) for _, each in attempt.queue if each.key is not None]
            assert len(set(sent)) == len(sent), f"two records of a sent key in a wave: {sent}"
        return []

    def _flush(self, attempt: Attempt, effect: Flush, luck: random.Random) -> list[Fault]:
        if attempt.id_index in self.broker.blocked:
            # The broker adds no partition to a transaction before the id's last transaction has ended.
            attempt.queue = []
            return [Fault(kind=None, why="no answer")]
        return self._flush_to(attempt, effect, luck)

    def _flush_to(self, attempt: Attempt, _: Flush, luck: random.Random) -> list[Fault]:
        transaction = self.broker.staged(attempt.id_index, attempt.epoch)
        faults: list[Fault] = []
        for place, record in attempt.queue:
            if self.marking and luck.random() < 0.02:
                # The process dies, and the records in its client are lost.
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
            # A failure without a named record fails the whole batch.
            faults = [Fault(kind=Kind.REJECTED, why="a batch was refused")]
        for fault in faults:
            if fault.topic is not None:
                attempt.surveyed.pop(fault.topic, None)
        attempt.queue = []
        return faults

    def _fault(self, place: int, record: Record) -> Fault | None:
        status = self.broker.topics[record.topic]
        if status != "present":
            kind = Kind.NO_TOPIC if status == "missing" else Kind.NOT_AUTHORISED
            return Fault(kind=kind, why=f"{record.topic} is {status}", topic=record.topic)
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
        transaction = self.broker.staged(attempt.id_index, attempt.epoch)
        if attempt.note is not None:
            transaction.notes.append(attempt.note)
        transaction.claim = Claim(id_index=attempt.id_index, claimant=str(attempt.number))
        chance = luck.random()
        if chance < 0.05:
            # The commit never reaches the broker, or only after its sender died.
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
        if attempt.epoch == self.broker.epochs.get(attempt.id_index) and attempt.id_index in self.broker.transactions:
            self.broker.ended(attempt.id_index)

    def late_commit(self) -> None:
        """Let the last commit of a dead attempt arrive."""
        for transaction in self.broker.late():
            self._committed(transaction)

    def _committed(self, transaction: Transaction) -> None:
        self.broker.ended(transaction.id_index)
        self.broker.progress += transaction.notes
        if transaction.notes:
            self.broker.written_by, self.broker.claims = transaction.claim, []
        for progress in transaction.notes:
            for id_, time, fate in zip(progress.ids, progress.create_times, progress.fates, strict=True):
                message = self.by_version[id_, time]
                if isinstance(fate, Filtered):
                    self.filtered.add(message.number)
                elif isinstance(fate, Dead):
                    self.poisoned.add(message.number)
        for record in transaction.records:
            self._read(self.messages[int(record.value or b"")])

    # The verdict

    def _read(self, message: Message) -> None:
        """Judge the next record of a reader of committed records."""
        number = message.number
        assert message.committed is not None, f"I2: {number} was read, and was never committed"
        self.times_sent[number] += 1
        if self.marking:
            return
        assert self.times_sent[number] == 1, f"I3: {number} was read twice"
        for earlier in self._preceding(message):
            assert message.committed > earlier.inserted, f"I4: {number} was read after {earlier.number}"
        self.sent.append(message)
        self.sent_as.append(message.sent_stream)

    def _see(self, message: Message) -> None:
        """Judge the next record of a reader of all records: it may repeat, but not after a later record of its key."""
        number = message.number
        assert message.committed is not None, f"I2: {number} was read, and was never committed"
        self.repeated += message in self.sent
        for earlier in self._preceding(message):
            assert message.committed > earlier.inserted, f"I3: {number} was read after {earlier.number}"
            together = message.committed == earlier.committed
            assert not together or number >= earlier.number, f"I3: {number} was read after {earlier.number}"
        self.sent.append(message)
        self.sent_as.append(message.sent_stream)

    def _preceding(self, message: Message) -> Iterator[Message]:
        """Yield the earlier messages of its key that were read: the stored key or, with a transform, the sent one."""
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
        return bool(self.times_sent[number]) or number in self.filtered or number in self.poisoned

    def judge(self) -> None:
        """Check the invariants that hold at every moment."""
        twice = [version for (_, version), times in self.settled.items() if times > 1]
        assert not twice, f"I7: settled twice: {twice}"
        waiting = {message.number for _, message in self.tables.outbox.values()}
        waiting |= {entry.message.number for entry in self.tables.dead.values()}
        for message in self.messages:
            if message.committed is not None and not message.erased:
                assert message.number in waiting or self._has_fate(message), f"I1: {message.number} is lost"

    def judge_at_rest(self) -> None:
        """Check the invariants that hold when all faults are healed and no work is left."""
        self.judge()
        assert not self.tables.outbox, f"I5: still there: {sorted(self.tables.outbox)}"
        dead = {entry.message.number for entry in self.tables.dead.values()}
        for message in self.messages:
            if message.committed is not None and not message.erased:
                number = message.number
                sent = min(1, self.times_sent[number]) if self.marking else self.times_sent[number]
                fates = sent + (number in self.filtered) + (number in dead)
                discarded = number in self.poisoned
                # At least once, a record that was reported as failed may be delivered, and be refused when it is sent
                # again.
                both = self.marking and bool(sent) and number in dead
                assert fates == 1 or both or (not fates and discarded) or (fates and message.not_again), (
                    f"I1: {number} has {fates} fates"
                )

    _doings: dict[type[Effect], Callable[..., Any]] = {  # noqa: RUF012
        ReadControl: _read_control,
        Init: _init,
        CheckTransactionEnded: _check_transaction_ended,
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
        Unhold: _unhold,
        Sweep: _sweep,
        ListTopics: lambda *_: None,
        Confine: lambda *_: None,
        KeepWaits: _keep_waits,
        ReportRejected: lambda *_: None,
        WaitForTransform: lambda *_: None,
        DiscardReadAhead: _discard_read_ahead,
        Reset: _reset,
    }

    # The end

    def drain(self, luck: random.Random) -> None:
        """Heal all faults, let a new leader work, and let every zombie take its last steps."""
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
        """Run attempts until no row is left. Dead rows that block a key are repaired and replayed."""
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
                entry.message.mend()
                self._put_back(version)
        return not self.tables.outbox


_WAIT = object()


def _bucket(id_: int, message: Message) -> int:
    return id_ % 2 if message.key is None else message.key[0] % 2
