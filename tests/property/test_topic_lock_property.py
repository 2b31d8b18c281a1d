"""The protocol of turns at a locked topic against a model of its lock, its slot and its rows.

Any worker may stop between any two steps, for ever or for a while. A lock may expire at any time, as it does for a
stopped process. A commit whose sender died may arrive late, or its answer may be lost. In all cases, readers of
committed records get every row once and in order, and in the end no row is left.
"""

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.examples import examples
from thresher.db.topic_locks import LockLost
from thresher.delivery.batch import Batch
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.effects import (
    Abandon,
    AwaitSettled,
    Begin,
    Commit,
    Control,
    DiscardReadAhead,
    Flush,
    Holder,
    Init,
    Produce,
    ReadControl,
    ReadHolder,
    ReadProgress,
    Recovered,
    ReportRejected,
    Settle,
    Survey,
    Take,
    WriteClaim,
    WriteProgress,
)
from thresher.delivery.row import Record, Row, RowList
from thresher.delivery.rules import Rules
from thresher.kafka.problem import BrokerLost
from thresher.kafka.topic_status import Available, Surveyed
from thresher.relay.protocol.progress import Progress
from thresher.relay.protocol.topic_lock import TopicCarrier, TopicProgress, protocol

OUTBOX_ID, TERM = "outbox", "term"
KEYS = (b"k", b"l", None)


class Fenced(Exception):
    """The broker has a newer epoch."""


@dataclass
class Transaction:
    """The rows and records staged at the broker under an epoch."""

    epoch: int
    rows: list[Row] = field(default_factory=list)
    notes: list[Progress] = field(default_factory=list)
    claims: list[int] = field(default_factory=list)
    # The commit was sent and has not arrived; its sender is dead.
    ending: bool = False


@dataclass
class Worker:
    """One process: its state between turns, and its current turn."""

    number: int
    carrier: TopicCarrier | None = None
    token: int = 0
    settled: bool = False
    epoch: int = -1
    claimant: int = -1
    steps: Any = None
    due: Any = None
    queue: list[Row] = field(default_factory=list)
    note: Any = None


class World:
    """A topic, its lock, and its slot at the broker."""

    def __init__(self, workers: int, compacting: bool) -> None:
        self.workers = [Worker(number) for number in range(workers)]
        self.compacting = compacting
        self.token, self.holder, self.run_out = 0, -1, False
        self.rows: dict[int, Row] = {}
        self.epoch = 0
        self.open: Transaction | None = None
        self.read: list[Row] = []
        self.progress: list[Progress] = []
        self.claimed = -1
        self.ids, self.claimants = itertools.count(1), itertools.count(1)
        self.written: list[Row] = []
        self.filtered: set[int] = set()

    # The database

    def write(self, key: bytes | None) -> None:
        id_ = next(self.ids)
        row = Row(id_, id_, "t", key, Record("t", str(id_).encode(), key, -1, 0, None))
        self.rows[id_] = row
        self.written.append(row)

    def require(self, worker: Worker) -> None:
        if self.token != worker.token or self.holder != worker.number:
            raise LockLost("taken")

    # Turns

    def begin(self, worker: Worker) -> None:
        """Take the lock and begin a turn, if the lock is free."""
        if self.holder >= 0 and not self.run_out:
            return
        self.token, self.holder, self.run_out = self.token + 1, worker.number, False
        kept = worker.carrier is not None and worker.settled and self.token == worker.token + 1
        self.start(worker, kept=kept)

    def start(self, worker: Worker, *, kept: bool) -> None:
        worker.token, worker.settled = self.token, False
        if not kept or worker.carrier is None:
            worker.carrier = TopicCarrier(
                ShardIdentity(outbox_id=OUTBOX_ID, term=TERM, shard=0),
                Rules(),
                TopicProgress(outbox_id=OUTBOX_ID, term=TERM, shard=0),
                compacting=self.compacting,
            )
            worker.claimant = next(self.claimants)
        worker.steps = protocol(worker.carrier, recovered=kept)
        worker.due = next(worker.steps)

    def step(self, worker: Worker, draw: random.Random) -> None:
        """Do the worker's next effect."""
        try:
            answer = self.do(worker, worker.due, draw)
            worker.due = worker.steps.send(answer)
        except StopIteration:
            worker.steps, worker.settled = None, True
            if self.token == worker.token and self.holder == worker.number:
                self.holder, self.run_out = -1, False
            else:
                worker.carrier = None
        except LockLost:
            worker.steps = worker.carrier = None
        except (Fenced, BrokerLost):
            worker.steps = worker.carrier = None
            if self.token == worker.token and self.holder == worker.number:
                # A real worker starts its turn again too, while it holds the lock.
                self.start(worker, kept=False)

    def kill(self, worker: Worker, draw: random.Random) -> None:
        """End a process; a commit that it has just sent may still arrive."""
        if worker.steps is not None and isinstance(worker.due, Commit) and draw.random() < 0.5:
            staged = self.open
            if staged is not None and staged.epoch == worker.epoch and worker.note is not None:
                staged.ending = True
                staged.notes.append(worker.note)
        worker.steps = worker.carrier = None
        worker.queue, worker.note = [], None

    # Effects

    def do(self, worker: Worker, effect: Any, draw: random.Random) -> Any:  # noqa: C901, PLR0911, PLR0912
        match effect:
            case ReadControl():
                self.require(worker)
                return Control(outbox_id=OUTBOX_ID, term=TERM, system_id="s", incarnation="1")
            case Init():
                self.epoch += 1
                worker.epoch, self.open = self.epoch, None
                worker.queue, worker.note = [], None
            case WriteClaim():
                self.staged(worker)
                self.open = None
                self.claimed = worker.claimant
                return True
            case ReadHolder():
                return Holder(id_index=0, ours=self.claimed == worker.claimant)
            case ReadProgress():
                return self.progress[-1:]
            case Settle(progress=progress):
                self.settle(worker, progress)
            case AwaitSettled():
                return True
            case Take():
                self.require(worker)
                rows = [self.rows[id_] for id_ in sorted(self.rows)][: draw.choice([1, 2, 5])]
                return Batch(rows=RowList(rows)) if rows and draw.random() < 0.8 else None
            case Survey():
                return Surveyed(topics=dict.fromkeys(effect.topics, Available(partitions=3)), now=0.0)
            case Produce():
                worker.queue = [row for row in effect.rows if isinstance(row.plan, Record)]
                return []
            case Flush():
                self.staged(worker).rows += worker.queue
                worker.queue = []
                return []
            case WriteProgress(progress=progress):
                worker.note = progress
                return True
            case Commit():
                return self.commit(worker, draw)
            case Begin():
                return True
            case Abandon() | Recovered() | DiscardReadAhead() | ReportRejected():
                return None
        return None

    def staged(self, worker: Worker) -> Transaction:
        if worker.epoch != self.epoch:
            raise Fenced
        if self.open is None:
            self.open = Transaction(worker.epoch)
        return self.open

    def commit(self, worker: Worker, draw: random.Random) -> bool:
        staged = self.staged(worker)
        if worker.note is not None:
            staged.notes.append(worker.note)
        worker.note = None
        luck = draw.random()
        if luck < 0.05:
            # The answer is lost, and perhaps the request too.
            if luck < 0.025:
                self.committed(staged)
            return False
        self.committed(staged)
        return True

    def committed(self, transaction: Transaction) -> None:
        self.read += transaction.rows
        self.progress += transaction.notes
        self.open = None
        self.judge()

    def late_commit(self) -> None:
        if self.open is not None and self.open.ending:
            self.committed(self.open)

    def settle(self, worker: Worker, progress: Any) -> None:
        self.require(worker)
        read = {row.id for row in self.read}
        for id_ in progress.ids:
            if self.rows.pop(id_, None) is not None and id_ not in read:
                self.filtered.add(id_)

    # The verdict

    def judge(self) -> None:
        ids = [row.id for row in self.read]
        assert len(set(ids)) == len(ids), "a row was read twice"
        for key in KEYS[:2]:
            own = [row.id for row in self.read if row.key == key]
            assert own == sorted(own), "rows of a key are out of order"

    def judge_at_rest(self) -> None:
        self.judge()
        assert not self.rows, "rows are left"
        read = {row.id for row in self.read}
        assert read | self.filtered == {row.id for row in self.written}, "rows are lost"
        if not self.compacting:
            assert not self.filtered
            return
        for key in KEYS[:2]:
            own = [row.id for row in self.written if row.key == key]
            assert not own or own[-1] in read, "the newest of a key was filtered"
        assert not any(row.id in self.filtered for row in self.written if row.key is None)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(1_500), derandomize=True, deadline=None)
def test_rows_are_read_once_in_order_despite_stopped_workers(seed: int) -> None:
    draw = random.Random(seed)
    world = World(draw.choice([1, 2, 3]), compacting=draw.random() < 0.3)
    for _ in range(150):
        worker, luck = draw.choice(world.workers), draw.random()
        if luck < 0.08:
            world.write(draw.choice(KEYS))
        elif luck < 0.11:
            world.run_out = True
        elif luck < 0.13:
            world.kill(worker, draw)
        elif luck < 0.16:
            world.late_commit()
        elif worker.steps is None:
            world.begin(worker)
        else:
            for _ in range(draw.choice([1, 1, 3, 12])):
                if worker.steps is not None:
                    world.step(worker, draw)
    calm(world, draw)
    world.judge_at_rest()


def calm(world: World, draw: random.Random) -> None:
    """Let one worker after another finish, until nothing is left."""
    for _ in range(2_000):
        worker = draw.choice(world.workers)
        if worker.steps is None:
            if not world.rows and world.holder < 0:
                return
            world.run_out = world.holder >= 0 and all(each.steps is None for each in world.workers)
            world.begin(worker)
        else:
            world.step(worker, draw)
    raise AssertionError("rows or locks are left after all steps")
