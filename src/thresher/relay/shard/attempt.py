"""One attempt at one shard of a relay: connects its sessions, its producer and its threads with its protocol.

Everything that an attempt opens is closed when it ends. A crash leaves at most row locks and an open transaction. The
successor ends the sessions that hold the locks, and its `init_transactions` ends the transaction.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from thresher.core.secrets import revealed
from thresher.delivery.batch import Batch, NothingYet
from thresher.delivery.crash_points import CrashPoints
from thresher.delivery.effects import DiscardReadAhead, Effect, Handlers, Recovered
from thresher.delivery.names import progress_topic, shard_sessions
from thresher.delivery.progress_topic.seal import Seal
from thresher.delivery.progress_topic.topic import progress_limit
from thresher.delivery.reading.read_ahead import ReadAhead
from thresher.delivery.reading.row_source import RowSource
from thresher.delivery.shard.flow import Flow
from thresher.delivery.shard.in_flight import IN_FLIGHT_KEYS
from thresher.delivery.shard.keeping_waits import WaitKeeper
from thresher.delivery.shard.meter import Meter
from thresher.delivery.shard.recovery import Recovery
from thresher.delivery.shard.taking import Taking
from thresher.delivery.shard_producer import ProgressTopic, ShardProducer
from thresher.delivery.transaction import Transactions
from thresher.kafka.admin import Admin
from thresher.kafka.transactional import TransactionalProducer
from thresher.relay.names import buckets_of
from thresher.relay.progress_source import known_progress
from thresher.relay.protocol.progress import encode
from thresher.relay.reading.marking import Marking
from thresher.relay.reading.pending_rows import PendingRows
from thresher.relay.settings import Delivery, ShardAssignment
from thresher.relay.shard.producer_factory import make_producer
from thresher.relay.shard.settling import SettleSteps
from thresher.relay.store import store_of
from thresher.service.events.event import REFRESHED
from thresher.spark.worker.shard import Shard


class Attempt:
    """The parts of one attempt. For the task's own thread, except `open_source`."""

    def __init__(self, shard: Shard, assignment: ShardAssignment, ahead: ReadAhead) -> None:
        settings = assignment.settings
        self._shard, self._assignment, self._ahead = shard, assignment, ahead
        # Spark may run a task again within an attempt, so marks contain a random id of this run.
        self._drawn = uuid.uuid4()
        self._term = uuid.UUID(assignment.term)
        self._application = shard_sessions(settings.name, assignment.term, shard.index)
        session = shard.enter(closing(store_of(settings).session(self._application)))
        self._admin = Admin.of(settings.kafka)
        crash = CrashPoints(assignment.hook, shard.index)
        meter = Meter(shard, report=shard.event, waves=self._marking)
        shard.note(IN_FLIGHT_KEYS, meter.in_flight.keys)
        seal = Seal(secret=assignment.secret, topic=progress_topic(settings.name), partition=shard.index)
        progress = ProgressTopic(topic=seal.topic, partition=shard.index, encode=encode, headers=seal.headers)
        shard_producer = ShardProducer(
            self._producer,
            claimant=str(self._drawn),
            admin=self._admin,
            progress=progress,
            batch_bytes=int(revealed(settings.producer.get("batch.size", 1_000_000))),
        )
        self.transactions = Transactions(
            shard_producer=shard_producer,
            admin=self._admin,
            progress=progress,
            observer=meter,
            crash=crash,
            lenient=self._marking,
            # A transform may take longer for a batch than the broker's transaction time-out.
            ahead=not settings.transform,
            wanted=lambda: ahead.ready,
        )
        self.settling = SettleSteps(
            assignment, session, ahead, self.leader if self._marking else None, crash, shard, meter
        )
        self._recovery = Recovery(
            shard, known_progress(assignment), session, self._admin, self.transactions, seal, crash, meter
        )
        self._waits = WaitKeeper(
            session.waits, settings.name, shard.index, term=assignment.term, settled=self.settling.settler.wait
        )
        self._crash = crash

    def handlers(self, batches: Iterator[Batch | NothingYet]) -> Handlers:
        """Return the function that performs each effect of a protocol."""
        taking = Taking(
            self._shard,
            self._ahead,
            batches,
            self._crash,
            batch_seconds=self._assignment.settings.limits.batch_seconds,
            check=self.settling.settler.check,
        )
        handlers = Flow(self._shard, self._ahead).watched(
            {
                **self._recovery.handlers,
                **self.transactions.handlers,
                **self.settling.handlers,
                **self._waits.handlers,
                **taking.handlers,
            }
        )
        if self._marking:
            # After these effects, rows are marked with another id: report it.
            handlers |= {each: self._then_tell_mark(handlers[each]) for each in (Recovered, DiscardReadAhead)}
        return handlers

    def _then_tell_mark(self, do: Callable[[Effect], Any]) -> Callable[[Effect], Any]:
        def done(effect: Effect) -> Any:
            answer = do(effect)
            first = isinstance(effect, Recovered) and self._shard.attempt == 1
            mark = self.leader(self._ahead.generation)
            self._shard.event("marking" if first else REFRESHED, leader_id=str(mark))
            return answer

        return done

    def progress_bytes(self) -> int:
        """Return the largest size of a progress record, as the broker allows it now."""
        settings = self._assignment.settings
        return progress_limit(self._admin, progress_topic(settings.name), {**settings.kafka, **settings.producer})

    def leader(self, generation: int) -> uuid.UUID:
        """Return the id that rows are marked with: a new one for each generation.

        1. Its first half is the term's, so that a mark in the table can be traced to its leader.
        2. The next byte is the shard's number.
        3. The rest is random. The attempt's number would not do: it is the same when Spark itself runs the task again.
           Then rows marked by the first run would count as marked by the second, which would never send them.
        """
        own = uuid.uuid5(self._drawn, str(generation))
        return uuid.UUID(bytes=self._term.bytes[:8] + bytes([self._shard.index]) + own.bytes[:7])

    def open_source(self) -> RowSource:
        """Open the source that rows are read from. For the reader's thread."""
        buckets = buckets_of(self._shard.index, self._shard.shards)
        since = self._recovery.since
        if self._marking:
            return Marking(self._assignment, self._application, buckets, since, self.leader, lambda: self._ahead.hot)
        return PendingRows(self._assignment.settings, self._application, buckets, since)

    @property
    def _marking(self) -> bool:
        return self._assignment.settings.delivery is Delivery.AT_LEAST_ONCE

    def _producer(self, id_index: int, more: dict[str, object], /, *, brief: bool = False) -> TransactionalProducer:
        return make_producer(self._assignment.settings, self._shard.index, id_index, more, brief=brief)
