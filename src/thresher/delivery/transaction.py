"""Does the Kafka side of a protocol: the producer of one attempt, its transactions, and the topics that they write to.

Data is flushed before the progress record is produced: a late retry inside the client can then commit half of the next
transaction at worst, which is a repeat and never a loss. A crash at any place leaves an open transaction, which the
successor's `init_transactions` ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import KafkaError

from thresher.core.clock import ServerClock
from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.delivery.effects import (
    Begin,
    CloseAhead,
    Commit,
    Fault,
    Flush,
    Handlers,
    Init,
    OpenAhead,
    Produce,
    Survey,
    WriteProgress,
)
from thresher.delivery.faults import Faults
from thresher.delivery.progress import ProgressRecord
from thresher.delivery.row import Record, RowList, Rows
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import TopicSurvey
from thresher.kafka.transaction_opening import TransactionOpening
from thresher.kafka.transactional import ProducerFenced, ProducerProblem, TransactionalProducer

# The least that makes sense for a batch of the client's, and its default.
_LEAST_BATCH_BYTES, _BATCH_BYTES = 16_000, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressTopic:
    """Where progress goes, and how a record is written there."""

    topic: str
    partition: int
    encode: Callable[[Any], bytes]

    def record(self, value: bytes) -> Record:
        """Return the record; an empty one opens a transaction, and no reader takes it for progress."""
        return Record(self.topic, value, None, self.partition, 0, None)


class DeliveryObserver(Protocol):
    """Counts what is delivered."""

    def begun(self) -> None:
        """A transaction was opened for rows."""

    def in_flight(self, rows: int) -> None:
        """So many rows are sent and not committed."""

    def committed(self, progress: ProgressRecord, rows: Rows, now_us: int | None) -> None:
        """The transaction was committed that carries these rows; `now_us` is the time by the database's clock."""

    def in_doubt(self, why: str) -> None:
        """Whether a transaction was committed is not known."""


class Transactions:
    """The producer of one attempt and what it writes. For the task's own thread.

    `make` makes a producer with these properties besides its own. `lenient`: the protocol bears faults that time may
    mend, and commits whose outcome is not known. `ahead`: transactions may wait for rows.
    """

    def __init__(
        self,
        *,
        make: Callable[[dict[str, Any]], TransactionalProducer],
        admin: Admin,
        progress: ProgressTopic,
        observer: DeliveryObserver,
        crash: CrashPoints,
        lenient: bool,
        ahead: bool,
        batch_bytes: int = _BATCH_BYTES,
        wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._make, self._progress, self._observer, self._crash = make, progress, observer, crash
        self._wanted = wanted
        self._producer: TransactionalProducer | None = None
        self._topics = TopicSurvey(admin, self._partitions)
        self._faults = Faults(progress=progress.topic, topics=self._topics, lenient=lenient)
        self._opening = TransactionOpening(lambda: self.producer, progress.record(b""), ahead=ahead)
        self.clock: ServerClock | None = None
        self._produced: Rows = RowList()
        self._written: ProgressRecord | None = None
        self._draft: tuple[ProgressRecord, bytes] | None = None
        self._batch_bytes = batch_bytes
        # Smaller after a batch that was too large for its topic, though perhaps none of its records was.
        self._reduced: int | None = None

    @property
    def handlers(self) -> Handlers:
        """What is done for each effect."""
        return {
            Init: self._init,
            Survey: lambda effect: self._topics.survey(effect.topics, fresh=effect.fresh),
            OpenAhead: self._open_ahead,
            CloseAhead: self._close_ahead,
            Begin: self._begin,
            Produce: self._produce,
            Flush: self._flush,
            WriteProgress: self._write_progress,
            Commit: self._commit,
        }

    @property
    def producer(self) -> TransactionalProducer:
        """The producer whose `init_transactions` fenced all others."""
        if self._producer is None:
            raise AssertionError("init first")
        return self._producer

    @property
    def initialised(self) -> bool:
        """Whether `init_transactions` was done once."""
        return self._producer is not None

    def _partitions(self, topic: str) -> int | KafkaError:
        return self.producer.partitions(topic)

    def _init(self, _: Init) -> None:
        if self._producer is not None:
            self._producer.discard()
        self._opening.forget()
        self._producer = self._make({} if self._reduced is None else {"batch.size": self._reduced})
        self._producer.init(self._progress.topic)
        self._crash.reach(CrashPoint.RECOVERY_FENCED)

    def _open_ahead(self, _: OpenAhead) -> None:
        self._keep_time()
        self._opening.ahead(self._wanted)

    def _close_ahead(self, _: CloseAhead) -> None:
        try:
            self._opening.end()
        except ProducerProblem:
            # The successor's `init_transactions` ends the transaction.
            return

    def _begin(self, _: Begin) -> None:
        self._crash.reach(CrashPoint.BEFORE_BEGIN)
        self._keep_time()
        self._opening.begin()
        self._observer.begun()
        self._produced = RowList()

    def _keep_time(self) -> None:
        """Tell the client the time, also for the empty record that opens a transaction."""
        if self.clock is not None:
            self.producer.now_ms = self.clock.now_ms()

    def _produce(self, effect: Produce) -> list[Fault]:
        rows = self._produced = effect.rows
        self._observer.in_flight(len(rows))
        some = 0
        if self._crash.watched:
            self._crash.hold(rows.ids)
            some = len(rows) // 2
            rows.produce_to(self.producer, 0, some)
            self._crash.reach(CrashPoint.PRODUCED_SOME)
        rows.produce_to(self.producer, some)
        return []

    def _flush(self, effect: Flush) -> list[Fault]:
        if effect.draft is not None:
            # While the data is on its way.
            self._draft = (effect.draft, self._progress.encode(effect.draft))
        undelivered = self.producer.flush()
        self._opening.flushed(len(self._produced))
        self._crash.reach(CrashPoint.FLUSHED)
        faults = self._faults.of(undelivered, self._produced)
        if undelivered and not faults:
            self.producer.forgive()
        if len(undelivered) > 1 and any(each.refusal is Refusal.SIZE for each in undelivered):
            self._reduced = max(_LEAST_BATCH_BYTES, (self._reduced or self._batch_bytes) // 2)
        return faults

    def _write_progress(self, effect: WriteProgress) -> bool:
        if effect.despite:
            self.producer.forgive()
        drafted, text = self._draft or (None, b"")
        value = text if drafted is effect.progress else self._progress.encode(effect.progress)
        self.producer.produce([(0, self._progress.record(value))])
        self._written, self._draft = effect.progress, None
        if not self._faults.lenient:
            return True
        failed = self.producer.unforgiven
        self._faults.require_epoch(failed)
        if any(each.refusal is not Refusal.MOMENT for each in failed):
            raise BrokerLost(f"a record for {failed[0].topic} was not delivered: {failed[0].why}")
        return not failed

    def _commit(self, _: Commit) -> bool:
        self._crash.reach(CrashPoint.BEFORE_COMMIT)
        try:
            self.producer.commit()
        except ProducerFenced:
            raise
        except ProducerProblem as problem:
            if not self._faults.lenient:
                raise
            self._observer.in_doubt(str(problem))
            return False
        self._opening.committed(len(self._produced))
        self._observer.in_flight(0)
        self._crash.reach(CrashPoint.COMMITTED)
        if self._written is not None:
            now_us = None if self.clock is None else self.clock.now_us()
            self._observer.committed(self._written, self._produced, now_us)
        return True
