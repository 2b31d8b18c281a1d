"""One process's turns at one lock: the producer of its slot, and the functions that perform each effect of a turn.

The producer is kept after a turn that left nothing open: if no other process held the lock since, the next turn goes on
with it. A crash leaves an open transaction and a lock that expires; the next holder's recovery ends and settles both.
"""

import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from thresher.core.secrets import revealed
from thresher.db.outbox_store import StoreSession, Wanted
from thresher.db.topic_locks import TopicLock, TopicLocks
from thresher.delivery.batch import Batch, Reserved, rows_of
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.delivery.effects import (
    AwaitSettled,
    Control,
    DiscardReadAhead,
    Effect,
    Handlers,
    Hold,
    Lift,
    ReadControl,
    Recovered,
    ReportRejected,
    Settle,
    Take,
)
from thresher.delivery.names import progress_topic
from thresher.delivery.progress_topic.seal import Seal
from thresher.delivery.progress_topic.topic import progress_limit
from thresher.delivery.rules import Rules
from thresher.delivery.shard.meter import Meter
from thresher.delivery.shard.recovery import Recovery
from thresher.delivery.shard.running import step_name
from thresher.delivery.shard.topic_alarm import TopicAlarm
from thresher.delivery.shard_producer import ProgressTopic, ShardProducer
from thresher.delivery.stored_rows import read_of, row_sizes
from thresher.delivery.transaction import Transactions
from thresher.kafka.admin import Admin
from thresher.kafka.transactional import TransactionalProducer
from thresher.relay.names import buckets_of
from thresher.relay.progress_source import known_progress
from thresher.relay.protocol.progress import encode
from thresher.relay.protocol.topic_lock import TopicCarrier, TopicProgress, protocol
from thresher.relay.settings import ShardAssignment
from thresher.relay.settle import Settlement, fates_of
from thresher.relay.shard.producer_factory import make_producer
from thresher.spark.worker.shard import Shard

# The largest size of a row that is read whole: no client sends a larger record.
_LARGEST_BYTES = 1 << 30
# The batch of a compacted topic: as many rows as fit into one progress record.
_COMPACTED_ROWS = 40_000
# A lock is renewed once this share of its time is over.
_RENEWED = 0.25
# The longest turn, and the longest while suspect or waiting rows are tried: a topic that is never drained must not keep
# a worker from all others.
_TURN_SECONDS, _LONGEST_TURN_SECONDS = 5.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResources:
    """The sessions, clients and figures of a worker, shared by all its turns."""

    shard: Shard
    assignment: ShardAssignment
    session: StoreSession
    locks: TopicLocks
    # Over a session with synchronous_commit off.
    marks: TopicLocks
    admin: Admin
    meter: Meter
    crash: CrashPoints
    reserved: Reserved
    # The topics that this worker has reported as waiting.
    alarm: TopicAlarm


@dataclass(frozen=True, slots=True)
class Done:
    """The topic is drained, or the turn's time is up; all is settled.

    `waiting` has the first and the last id of rows that cannot be sent yet.
    """

    waiting: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Errored:
    """The turn failed. `missing`: the topic does not exist, or is forbidden.

    `ours`: no row was taken yet. So the cause is not the topic, but a producer, a progress record or a server of ours.
    """

    why: str
    missing: bool = False
    ours: bool = False


@dataclass(slots=True, kw_only=True)
class _Turn:
    """The state of the present turn."""

    # The next read. It leaves out rows and keys that cannot be sent yet.
    wanted: Wanted
    begun: float = 0.0
    renewed: float = 0.0
    # Whether the last read may have left rows.
    full: bool = True
    # Why the topic cannot be written to; empty if it can.
    held: str = ""


class LockTurns:
    """The turns of one process at one lock. For one thread. `close` discards the producer."""

    def __init__(self, resources: WorkerResources, lock: TopicLock) -> None:
        settings, assignment = resources.assignment.settings, resources.assignment
        self._resources, self.lock = resources, lock
        seal = Seal(secret=assignment.secret, topic=progress_topic(settings.name), partition=lock.slot)
        progress = ProgressTopic(topic=seal.topic, partition=lock.slot, encode=encode, headers=seal.headers)
        self._shard_producer = ShardProducer(
            self._producer,
            claimant=str(uuid.uuid4()),
            admin=resources.admin,
            progress=progress,
            batch_bytes=int(revealed(settings.producer.get("batch.size", 1_000_000))),
        )
        self._transactions = Transactions(
            shard_producer=self._shard_producer,
            admin=resources.admin,
            progress=progress,
            observer=resources.meter,
            crash=resources.crash,
            lenient=False,
            ahead=False,
        )
        self._recovery = Recovery(
            resources.shard,
            known_progress(assignment),
            resources.session,
            resources.admin,
            self._transactions,
            seal,
            resources.crash,
            resources.meter,
        )
        self._settlement = Settlement(resources.session.settlement)
        # The grace runs over all processes: part of it was over when this process took the lock. Then the producer is
        # not kept, so that the next turn reads the times again.
        self.waited = lock.missing_seconds > 0 or lock.waiting_seconds > 0
        rules = Rules(
            poison=settings.poison,
            grace_seconds=settings.limits.grace_seconds,
            sweeps=False,
            waited_seconds=lock.missing_seconds,
            row_waited_seconds=lock.waiting_seconds,
            row_waited_id=lock.waiting_id,
        )
        self._carrier = TopicCarrier(
            ShardIdentity(outbox_id=assignment.outbox_id, term=assignment.term, shard=lock.slot),
            rules,
            TopicProgress(
                outbox_id=assignment.outbox_id,
                term=assignment.term,
                shard=lock.slot,
                most_bytes=progress_limit(resources.admin, seal.topic, {**settings.kafka, **settings.producer}),
            ),
            compacting=lock.topic in settings.topic_locking.compact_topics,
        )
        # Whether the present turn has taken rows.
        self.took = False
        # Whether everything that this process published under the lock is settled, so that its producer can be kept.
        self._settled = False
        self._turn = _Turn(wanted=Wanted(buckets=(), rows=0, batch_bytes=0, largest_bytes=0))
        self._handlers = self._all_handlers()
        self._steps: dict[type[Effect], AbstractContextManager[None]] = {
            kind: resources.shard.step(step_name(kind)) for kind in self._handlers
        }

    def goes_on(self, lock: TopicLock) -> bool:
        """Whether no other process has held the lock since our last turn, and that turn left nothing open."""
        return self._settled and not self.waited and lock.token == self.lock.token + 1

    def take_turn(self, lock: TopicLock) -> Done | Errored:
        """Work on the topic until it is drained, the turn's time is up, or the topic cannot be written to.

        Raises `LockLost` if another process has taken the lock. Errors of the broker and the database are passed on.
        """
        kept, self._settled, self.took = self.goes_on(lock), False, False
        self.lock = lock
        limits, locking = self._resources.assignment.settings.limits, self._resources.assignment.settings.topic_locking
        wanted = Wanted(
            buckets=buckets_of(lock.part, lock.parts),
            rows=_COMPACTED_ROWS if lock.topic in locking.compact_topics else limits.batch_rows,
            batch_bytes=limits.batch_bytes,
            largest_bytes=_LARGEST_BYTES,
        )
        now = time.monotonic()
        self._turn = turn = _Turn(wanted=wanted, begun=now, renewed=now)
        steps = protocol(self._carrier, recovered=kept)
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                break
            self._renew()
            kind = type(effect)
            with self._steps[kind]:
                answer = self._handlers[kind](effect)
        self._settled = not turn.held
        if turn.held:
            return Errored(turn.held, missing=self._carrier.gate.topics.is_missing(lock.topic))
        return Done(waiting=self._carrier.gate.rows.ids)

    def close(self) -> None:
        """Discard the producer."""
        self._shard_producer.discard()

    def _all_handlers(self) -> Handlers:
        recovery = self._recovery.handlers
        return {
            **recovery,
            **self._transactions.handlers,
            ReadControl: self._checking_lock(recovery[ReadControl]),
            Recovered: lambda _: self._resources.crash.reach(CrashPoint.RECOVERED),
            Take: self._take,
            Settle: self._settle,
            AwaitSettled: lambda _: True,
            Hold: self._hold,
            ReportRejected: self._report_rejected,
            Lift: lambda effect: self._resources.alarm.lift([effect.topic]),
            DiscardReadAhead: lambda _: None,
        }

    def _checking_lock(self, read: Callable[[ReadControl], Control | None]) -> Callable[[ReadControl], Control | None]:
        def checked(effect: ReadControl) -> Control | None:
            control = read(effect)
            self._resources.locks.require(self.lock)
            return control

        return checked

    def _renew(self) -> None:
        """Renew the lock if a quarter of its time is over."""
        seconds = self._resources.assignment.settings.topic_locking.lock_seconds
        if time.monotonic() - self._turn.renewed > seconds * _RENEWED:
            self._resources.locks.renew(self.lock)
            self._turn.renewed = time.monotonic()

    def _take(self, _: Take) -> Batch | None:
        resources = self._resources
        # Suspect rows are tried within one turn: another worker does not know them, and would begin with all rows.
        most = _LONGEST_TURN_SECONDS if self._carrier.gate.rows else _TURN_SECONDS
        over = time.monotonic() - self._turn.begun > most
        if resources.shard.stopping or self._turn.held or over or not self._turn.full:
            return None
        found = resources.marks.take(self.lock, self._turn.wanted, uuid.uuid4())
        if not found:
            return None
        self.took = True
        read = read_of(found)
        # A read that was bounded by bytes has fewer rows, although more wait.
        self._turn.full = (
            len(found) >= self._turn.wanted.rows or sum(row_sizes(read)) > self._turn.wanted.batch_bytes // 2
        )
        resources.crash.hold([row[0] for row in found] if resources.crash.watched else ())
        return Batch(rows=rows_of(read, resources.reserved))

    def _settle(self, effect: Settle) -> None:
        progress: Any = effect.progress
        resources, began = self._resources, time.monotonic()
        point = CrashPoint.RECOVERY_SETTLING if effect.recovering else CrashPoint.SETTLING
        found = resources.locks.settle(
            self.lock, fates_of(progress), lambda: resources.crash.reach(point, progress.ids)
        )  # fmt: skip
        self._turn.renewed = time.monotonic()
        if effect.recovering:
            if found:
                resources.shard.count("recovered", found)
        else:
            resources.meter.settled(time.monotonic() - began)
        if found < len(progress.ids):
            self._settlement.require_gone(progress, recovering=effect.recovering)
            if not effect.recovering:
                resources.shard.event("gone", rows=len(progress.ids) - found)
        if not effect.recovering:
            resources.crash.reach(CrashPoint.SETTLED, progress.ids)

    def _hold(self, effect: Hold) -> None:
        if not self._carrier.gate.topics.is_missing(self.lock.topic):
            # The alarm about missing topics is common: see `Worker`.
            self._resources.alarm.raise_for({self.lock.topic: effect.why})
        if self.lock.topic in effect.topics:
            self._turn.held = effect.why
            return
        left_out = self._turn.wanted
        self._turn.wanted = replace(
            left_out,
            hot_keys={*left_out.hot_keys, *effect.streams},
            in_flight={**left_out.in_flight, **effect.rows, **effect.behind},
        )

    def _report_rejected(self, effect: ReportRejected) -> None:
        topics = sorted(effect.topics)
        # The rejected rows are still in the table.
        self._turn.full = True
        self._resources.shard.event("rejected", topics=topics, records=effect.records, why=effect.why)

    def _producer(self, id_index: int, more: dict[str, object], /, *, brief: bool = False) -> TransactionalProducer:
        return make_producer(self._resources.assignment.settings, self.lock.slot, id_index, more, brief=brief)
