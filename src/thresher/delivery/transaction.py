"""Performs the Kafka effects of a protocol, with the producer of one attempt.

The rows' records are flushed before the progress record is produced. So a late retry inside the client can at worst
commit half of the next transaction, which is a repeat and never a loss. A crash at any point leaves an open
transaction, which the successor's `init_transactions` ends.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from confluent_kafka import KafkaError

from thresher.core.clock import ServerClock
from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.delivery.effects import (
    Abandon,
    Begin,
    Blocked,
    CheckTransactionEnded,
    CloseAhead,
    Commit,
    Fault,
    Flush,
    Handlers,
    Init,
    ListTopics,
    OpenAhead,
    Produce,
    Survey,
    WriteProgress,
)
from thresher.delivery.faults import Faults
from thresher.delivery.progress import ProgressRecord
from thresher.delivery.row import RowList, Rows
from thresher.delivery.shard_producer import ProgressTopic, ShardProducer
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import Opener, opener
from thresher.kafka.problem import BrokerLost
from thresher.kafka.producer_problem import CommitUnknown, ProducerFenced, ProducerProblem, RecordsUnanswered
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Surveyed, TopicSurvey
from thresher.kafka.transaction.opening import TransactionOpening
from thresher.kafka.transactional import TransactionalProducer

# How many topics a message names.
_MAX_NAMED = 5


class DeliveryObserver(Protocol):
    """Is told of each step of a delivery, to count it."""

    def begun(self) -> None:
        """A transaction was opened for rows."""

    def sent(self, rows: Rows) -> None:
        """The records of these rows are handed to the client."""

    def forgotten(self) -> None:
        """A new producer begins: records that were sent and not settled are no longer in flight."""

    def committed(self, progress: ProgressRecord, rows: Rows, now_us: int | None) -> None:
        """The transaction with these rows was committed; `now_us` is the time by the database's clock."""

    def in_doubt(self, problem: Exception, why: str) -> None:
        """A producer is discarded, and recovery finds out whether its transaction was committed."""


class Transactions:
    """The transactions of one attempt. For the task's own thread.

    `lenient`: the protocol can commit a transaction although single records failed. `ahead`: a transaction may be
    opened before its rows come. `wanted` returns whether rows have come meanwhile.
    """

    def __init__(
        self,
        *,
        shard_producer: ShardProducer,
        admin: Admin,
        progress: ProgressTopic,
        observer: DeliveryObserver,
        crash: CrashPoints,
        lenient: bool,
        ahead: bool,
        wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.shard_producer, self._progress, self._observer, self._crash = shard_producer, progress, observer, crash
        self._wanted = wanted
        self._topics = TopicSurvey(admin, self._partitions)
        self._faults = Faults(progress=progress.topic, topics=self._topics, lenient=lenient)
        self._opening = TransactionOpening(lambda: self.producer, progress.opener, ahead=ahead)
        self.clock: ServerClock | None = None
        self._produced: Rows = RowList()
        self._written: ProgressRecord | None = None
        self._draft: tuple[ProgressRecord, bytes] | None = None
        # Set if partitions did not answer while records were queued.
        self._silent: RecordsUnanswered | None = None

    @property
    def handlers(self) -> Handlers:
        """The function that performs each effect."""
        return {
            Init: self._init,
            CheckTransactionEnded: lambda effect: self.shard_producer.has_ended(effect.id_index),
            Survey: self._survey,
            ListTopics: lambda _: self._topics.existing(),
            OpenAhead: self._open_ahead,
            CloseAhead: self._close_ahead,
            Begin: self._begin,
            Produce: self._produce,
            Flush: self._flush,
            WriteProgress: self._write_progress,
            Commit: self._commit,
            Abandon: self._abandon,
        }

    @property
    def producer(self) -> TransactionalProducer:
        """The producer. Its `init_transactions` has fenced all others of its transactional id."""
        return self.shard_producer.producer

    def _partitions(self, topic: str) -> int | KafkaError:
        return self.producer.partitions(topic)

    def _survey(self, effect: Survey) -> Surveyed:
        surveyed = self._topics.survey(effect.topics, fresh=effect.fresh)
        return surveyed if self.clock is None else replace(surveyed, server_ms=self.clock.now_ms())

    def _init(self, effect: Init) -> Blocked | None:
        self._opening.forget()
        self._silent = None
        self._observer.forgotten()
        blocked = self.shard_producer.init(effect.id_index)
        if blocked is None:
            self._crash.reach(CrashPoint.RECOVERY_FENCED)
        return blocked

    def commit_opener(self, partition: int) -> Opener:
        """Commit an opener to a partition of the progress topic, and return it."""
        opened, record = opener(self._progress.topic, partition)
        self._keep_time()
        self._opening.begin()
        self.producer.produce([(0, record)])
        self._faults.require_progress(self.producer.flush())
        self._opening.end()
        return opened

    def write_claim(self) -> bool:
        """Commit our claim to the progress partition, and return whether it certainly committed."""
        self._keep_time()
        try:
            self._faults.require_progress(self.shard_producer.write_claim())
        except ProducerFenced:
            raise
        except ProducerProblem as problem:
            self._observer.in_doubt(problem, str(problem))
            return False
        return True

    def _open_ahead(self, _: OpenAhead) -> bool:
        self._keep_time()
        try:
            self._opening.ahead(self._wanted)
        except ProducerFenced:
            raise
        except ProducerProblem as problem:
            self._observer.in_doubt(problem, str(problem))
            return False
        return True

    def _close_ahead(self, _: CloseAhead) -> None:
        try:
            self._opening.end()
        except ProducerProblem:
            # The successor's `init_transactions` ends the transaction.
            return

    def _begin(self, _: Begin) -> bool:
        self._crash.reach(CrashPoint.BEFORE_BEGIN)
        self._keep_time()
        try:
            self._opening.begin()
        except ProducerFenced:
            raise
        except ProducerProblem as problem:
            self._observer.in_doubt(problem, str(problem))
            return False
        self._observer.begun()
        self._produced = RowList()
        return True

    def _keep_time(self) -> None:
        """Tell the producer the database's time, for records without a timestamp of their own."""
        if self.clock is not None:
            self.producer.now_ms = self.clock.now_ms()

    def _produce(self, effect: Produce) -> list[Fault]:
        rows = self._produced = effect.rows
        self._observer.sent(rows)
        some = 0
        try:
            if self._crash.watched:
                self._crash.hold(rows.ids)
                some = len(rows) // 2
                rows.produce_to(self.producer, 0, some)
                self._crash.reach(CrashPoint.PRODUCED_SOME)
            rows.produce_to(self.producer, some)
        except RecordsUnanswered as problem:
            # The client's queue was full and did not drain: the next `Flush` answers with the fault.
            self._silent = problem
        return []

    def _flush(self, effect: Flush) -> list[Fault]:
        if effect.draft is not None:
            # Encoded while the records are on their way.
            self._draft = (effect.draft, self._progress.encode(effect.draft))
        if self._silent is not None:
            return self._faults.of_silence(self._silent)
        try:
            undelivered = self.producer.flush()
        except RecordsUnanswered as problem:
            return self._faults.of_silence(problem)
        self._opening.flushed(len(self._produced))
        self._crash.reach(CrashPoint.FLUSHED)
        faults = self._faults.of(undelivered, self._produced)
        if undelivered and not faults:
            self.producer.forget_faults()
        if len(undelivered) > 1 and any(each.refusal is Refusal.SIZE for each in undelivered):
            self.shard_producer.reduce_batches()
        return faults

    def _write_progress(self, effect: WriteProgress) -> bool:
        if effect.despite:
            self.producer.forget_faults()
        drafted, text = self._draft or (None, b"")
        value = text if drafted is effect.progress else self._progress.encode(effect.progress)
        self.producer.produce([(0, self._progress.record(value, self.shard_producer.claim))])
        self._written, self._draft = effect.progress, None
        if not self._faults.lenient:
            return True
        failed = self.producer.unhandled_faults
        self._faults.require_epoch(failed)
        if any(each.refusal is not Refusal.TRANSIENT for each in failed):
            raise BrokerLost(f"a record for {failed[0].topic} was not delivered: {failed[0].why}")
        return not failed

    def _commit(self, _: Commit) -> bool:
        self._crash.reach(CrashPoint.BEFORE_COMMIT)
        try:
            self.producer.commit()
        except ProducerFenced:
            raise
        except ProducerProblem as problem:
            if not self._faults.lenient and not isinstance(problem, CommitUnknown):
                raise
            topics = sorted(self._produced.topics)
            named = f"{', '.join(topics[:_MAX_NAMED])}{' and others' if len(topics) > _MAX_NAMED else ''}"
            self._observer.in_doubt(
                problem, f"{problem}; the transaction is on {named}; {self.shard_producer.unhealthy()}"
            )
            return False
        self._opening.committed(len(self._produced))
        self._crash.reach(CrashPoint.COMMITTED)
        if self._written is not None:
            now_us = None if self.clock is None else self.clock.now_us()
            self._observer.committed(self._written, self._produced, now_us)
        return True

    def _abandon(self, _: Abandon) -> None:
        self.producer.discard(abort=True)
        self._opening.forget()
