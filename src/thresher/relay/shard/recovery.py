"""Does the steps of recovery: reads the control row and the committed progress, and reports that reading may begin."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from thresher.core.clock import ServerClock
from thresher.db.outbox_store import StoreSession
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
from thresher.delivery.transaction import Transactions
from thresher.delivery.transforms import FailureCount
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import Opener
from thresher.kafka.problem import BrokerLost
from thresher.relay.leader.assumptions import require_known_system
from thresher.relay.leader.progress_topic import known_topic
from thresher.relay.progress_log import ProgressLog
from thresher.relay.protocol.progress import Progress, merged
from thresher.relay.protocol.seal import Seal
from thresher.relay.settings import Mandate
from thresher.relay.shard.meter import Meter
from thresher.spark.worker.shard import Shard


class Recovery:
    """Reads what the last owner left. For the task's own thread."""

    def __init__(
        self,
        shard: Shard,
        mandate: Mandate,
        session: StoreSession,
        admin: Admin,
        transactions: Transactions,
        seal: Seal,
        crash: CrashPoints,
        meter: Meter,
    ) -> None:
        self._shard, self._mandate, self._admin = shard, mandate, admin
        self._session = session
        self._transactions, self._crash, self._meter = transactions, crash, meter
        self._seal = seal
        # The last committed record, read after the last `init_transactions`; and how many strangers were met.
        self._last: Progress | None = None
        self._strangers = 0
        # Where our claim is to be found: its end was sampled before the claim.
        self._claimed: ProgressLog | None = None
        # The database's incarnation that was recovered on.
        self.since = ""

    @property
    def handlers(self) -> Handlers:
        """What is done for each effect."""
        return {
            ReadControl: self._read_control,
            WriteClaim: self._write_claim,
            ReadHolder: self._read_holder,
            ReadProgress: self._read_progress,
            Recovered: self._recovered,
        }

    def _read_control(self, _: ReadControl) -> Control | None:
        row = self._session.control.read(self._mandate.settings.name)
        now = self._session.incarnation()
        self.since = now.since
        self._transactions.clock = ServerClock(now.now)
        if row is None:
            return None
        require_known_system(self._mandate.settings.name, row, now.system_id)
        if self._transactions.lanes.initialised:
            self._crash.reach(CrashPoint.RECOVERY_CHECKED)
        return Control(outbox_id=row.outbox_id, term=row.term, system_id=row.system_id, incarnation=now.since)

    def _write_claim(self, _: WriteClaim) -> bool:
        if self._claimed is not None:
            self._claimed.close()
        self._claimed = log = self._log(self._seal, self._claim)
        try:
            # However many records follow the claim, it lies behind this end.
            log.sample()
            return self._transactions.write_claim()
        except BaseException:
            log.close()
            raise

    def _claim(self) -> Opener:
        record = self._transactions.lanes.claimed
        if record is None:
            raise AssertionError("claim first")
        return Opener.of(record)

    def _read_holder(self, _: ReadHolder) -> Holder:
        lanes = self._transactions.lanes
        # Our claim is the opener: a broker that was cut off may show an old end, and does not show the claim.
        log = self._claimed if lanes.claimed is not None else None
        with log or self._log(self._seal, None) as log:
            self._last = log.last()
        self._claimed = None
        self._strangers = log.strangers
        return Holder(lane=log.holder.lane, ours=log.holder.claimant == lanes.claim.claimant)

    def _read_progress(self, effect: ReadProgress) -> Iterable[Progress]:
        if effect.whole:
            return merged(self._read_horizon())
        last = self._last
        # After the read: another topic under the name may be empty, and rows that were sent would be sent again.
        known_topic(self._admin, self._mandate.settings.name, self._mandate.progress_topic_id)
        self._meter.strangers(self._strangers)
        records = [] if last is None else [last]
        if records:
            self._shard.share(FailureCount).rows = records[-1].failures
        self._crash.reach(CrashPoint.RECOVERY_READ)
        return records

    def _read_horizon(self) -> Iterator[Progress]:
        """Yield all progress of all partitions: a bucket may have been another shard's within the horizon."""
        partitions = self._transactions.producer.partitions(self._seal.topic)
        if not isinstance(partitions, int):
            raise BrokerLost(f"the cluster did not say how {self._seal.topic} stands: {partitions.str()}")
        for partition in range(partitions):
            # What a log learns about the seals of another partition is not this shard's.
            opener = partial(self._transactions.commit_opener, partition)
            with self._log(replace(self._seal, partition=partition), opener) as log:
                yield from log.whole()

    def _log(self, seal: Seal, commit_opener: Callable[[], Opener] | None) -> ProgressLog:
        return ProgressLog.of(seal, self._mandate.outbox_id, self._mandate.settings.kafka, commit_opener=commit_opener)

    def _recovered(self, _: Recovered) -> None:
        self._crash.reach(CrashPoint.RECOVERED)
        self._meter.recovered()
        self._shard.event("relaying")
