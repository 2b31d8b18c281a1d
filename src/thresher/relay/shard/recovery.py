"""Does the steps of recovery: reads the control row and the committed progress, and reports that reading may begin."""

from collections.abc import Iterable, Iterator

from thresher.core.clock import ServerClock
from thresher.db.outbox_store import StoreSession
from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.delivery.effects import Control, Handlers, ReadControl, ReadProgress, Recovered
from thresher.delivery.transaction import Transactions
from thresher.delivery.transforms import FailureCount
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail
from thresher.kafka.problem import BrokerLost
from thresher.relay.leader.progress_topic import known_topic
from thresher.relay.names import progress_topic
from thresher.relay.protocol.progress import Progress, decode, merged
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
        crash: CrashPoints,
        meter: Meter,
    ) -> None:
        self._shard, self._mandate, self._admin = shard, mandate, admin
        self._session = session
        self._transactions, self._crash, self._meter = transactions, crash, meter
        self._topic = progress_topic(mandate.settings.name)
        # The database's incarnation that was recovered on.
        self.since = ""

    @property
    def handlers(self) -> Handlers:
        """What is done for each effect."""
        return {ReadControl: self._read_control, ReadProgress: self._read_progress, Recovered: self._recovered}

    def _read_control(self, _: ReadControl) -> Control | None:
        row = self._session.control.read(self._mandate.settings.name)
        now = self._session.incarnation()
        self.since = now.since
        self._transactions.clock = ServerClock(now.now)
        if row is None:
            return None
        if self._transactions.initialised:
            self._crash.reach(CrashPoint.RECOVERY_CHECKED)
        return Control(outbox_id=row.outbox_id, term=row.term, system_id=row.system_id, incarnation=now.since)

    def _read_progress(self, effect: ReadProgress) -> Iterable[Progress]:
        if effect.whole:
            return merged(self._read_horizon())
        with CommittedTail(self._topic, self._shard.index, self._mandate.settings.kafka) as tail:
            last = tail.last()
        # After the read: another topic under the name may be empty, and rows that were sent would be sent again.
        known_topic(self._admin, self._mandate.settings.name, self._mandate.progress_topic_id)
        records = [] if last is None else [decode(last)]
        if records:
            self._shard.share(FailureCount).rows = records[-1].failures
        self._crash.reach(CrashPoint.RECOVERY_READ)
        return records

    def _read_horizon(self) -> Iterator[Progress]:
        """Yield all progress of all partitions: a bucket may have been another shard's within the horizon."""
        partitions = self._transactions.producer.partitions(self._topic)
        if not isinstance(partitions, int):
            raise BrokerLost(f"the cluster did not say how {self._topic} stands: {partitions.str()}")
        for partition in range(partitions):
            mine = partition == self._shard.index
            with CommittedTail(self._topic, partition, self._mandate.settings.kafka, fenced=mine) as tail:
                yield from map(decode, tail.whole())

    def _recovered(self, _: Recovered) -> None:
        self._crash.reach(CrashPoint.RECOVERED)
        self._meter.recovered()
        self._shard.event("relaying")
