"""Performs the effects of recovery: reads the control row and the committed progress, and reports its end."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol

from thresher.core.clock import ServerClock
from thresher.db.control import ControlRows, Incarnation
from thresher.db.waits import KeptWaits, Waits
from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.delivery.effects import (
    Control,
    Handlers,
    Holder,
    ReadControl,
    ReadHolder,
    ReadProgress,
    Recovered,
    WriteClaim,
)
from thresher.delivery.leader.control_row import require_known_system
from thresher.delivery.progress_topic.progress_log import P, ProgressLog, ProgressSource
from thresher.delivery.progress_topic.seal import Seal
from thresher.delivery.progress_topic.topic import known_topic
from thresher.delivery.shard.meter import Meter
from thresher.delivery.transaction import Transactions
from thresher.delivery.transforms import FailureCount
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import Opener
from thresher.kafka.problem import BrokerLost
from thresher.spark.worker.shard import Shard


class ControlSession(Protocol):
    """A session in the database of the control row."""

    @property
    def control(self) -> ControlRows:
        """The control rows."""

    @property
    def waits(self) -> KeptWaits:
        """What waits in the shards."""

    def incarnation(self) -> Incarnation:
        """Return the identity of this database: which system, and since which start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProgress(Generic[P]):
    """The progress topic as the leader found it: how to read it, and the topic's id.

    `merged` turns records into fewer ones with the same fates.
    """

    source: ProgressSource[P]
    topic_id: str
    merged: Callable[[Iterable[P]], Iterator[P]] = iter


class Recovery(Generic[P]):
    """Reads the progress that the last owner committed. For the task's own thread."""

    def __init__(
        self,
        shard: Shard,
        known: KnownProgress[P],
        session: ControlSession,
        admin: Admin,
        transactions: Transactions,
        seal: Seal,
        crash: CrashPoints,
        meter: Meter,
    ) -> None:
        self._shard, self._known, self._admin = shard, known, admin
        self._session = session
        self._transactions, self._crash, self._meter = transactions, crash, meter
        self._seal = seal
        # The last committed record, read after the last `init_transactions`; and the number of foreign records after
        # it.
        self._last: P | None = None
        self._foreign_records = 0
        # The log in which our claim must be found. Its end was asked for before the claim was written.
        self._claimed: ProgressLog[P] | None = None
        # The database's incarnation during recovery.
        self.since = ""

    @property
    def handlers(self) -> Handlers:
        """The function that performs each effect."""
        return {
            ReadControl: self._read_control,
            WriteClaim: self._write_claim,
            ReadHolder: self._read_holder,
            ReadProgress: self._read_progress,
            Recovered: self._recovered,
        }

    def _read_control(self, _: ReadControl) -> Control | None:
        row = self._session.control.read(self._known.source.pipeline)
        now = self._session.incarnation()
        self.since = now.since
        self._transactions.clock = ServerClock(now.now)
        if row is None:
            return None
        require_known_system(self._known.source.pipeline, row, now.system_id)
        if self._transactions.shard_producer.initialised:
            self._crash.reach(CrashPoint.RECOVERY_CHECKED)
        return Control(outbox_id=row.outbox_id, term=row.term, system_id=row.system_id, incarnation=now.since)

    def _write_claim(self, _: WriteClaim) -> bool:
        if self._claimed is not None:
            self._claimed.close()
        self._claimed = log = self._log(self._seal, self._claim)
        try:
            # The claim comes after this end, however many records follow it.
            log.sample()
            return self._transactions.write_claim()
        except BaseException:
            log.close()
            raise

    def _claim(self) -> Opener:
        record = self._transactions.shard_producer.claimed
        if record is None:
            raise AssertionError("claim first")
        return Opener.of(record)

    def _read_holder(self, _: ReadHolder) -> Holder:
        shard_producer = self._transactions.shard_producer
        # The read must find our claim: a broker that was cut off may show an old end, without the claim.
        log = self._claimed if shard_producer.claimed is not None else None
        with log or self._log(self._seal, None) as log:
            self._last = log.last()
        self._claimed = None
        self._foreign_records = log.foreign_records
        return Holder(id_index=log.holder.id_index, ours=log.holder.claimant == shard_producer.claim.claimant)

    def _read_progress(self, effect: ReadProgress) -> Iterable[P]:
        if effect.whole:
            return self._known.merged(self._read_horizon())
        last = self._last
        # Checked after the read: a new topic of the same name would be empty, and rows would be sent again.
        source = self._known.source
        known_topic(self._admin, source.topic, self._known.topic_id, pipeline=source.pipeline)
        self._meter.foreign_records(self._foreign_records)
        records = [] if last is None else [last]
        if records:
            self._shard.share(FailureCount).rows = records[-1].failures
        self._crash.reach(CrashPoint.RECOVERY_READ)
        return records

    def _read_horizon(self) -> Iterator[P]:
        """Yield the progress of all partitions: another shard may have had our buckets within the horizon."""
        partitions = self._transactions.producer.partitions(self._seal.topic)
        if not isinstance(partitions, int):
            raise BrokerLost(f"the cluster did not return the partitions of {self._seal.topic}: {partitions.str()}")
        for partition in range(partitions):
            opener = partial(self._transactions.commit_opener, partition)
            with self._log(replace(self._seal, partition=partition), opener) as log:
                yield from log.whole()

    def _log(self, seal: Seal, commit_opener: Callable[[], Opener] | None) -> ProgressLog[P]:
        return self._known.source.log(seal, commit_opener=commit_opener)

    def _recovered(self, _: Recovered) -> Waits:
        self._crash.reach(CrashPoint.RECOVERED)
        self._meter.recovered()
        self._shard.event("relaying")
        return self._session.waits.read(self._known.source.pipeline)
