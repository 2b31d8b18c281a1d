"""One attempt at one shard of a relay: its sessions, its producer and its threads, put together for its protocol.

Everything that an attempt opens is closed when it ends. A crash leaves row locks and an open transaction at most: the
successor ends the sessions, and its `init_transactions` ends the transaction.
"""

import uuid
from collections.abc import Iterator
from contextlib import closing

from thresher.delivery.batch import Batch, NothingYet
from thresher.delivery.crash_points import CrashPoints
from thresher.delivery.effects import Handlers
from thresher.delivery.transaction import ProgressTopic, Transactions
from thresher.kafka.admin import Admin
from thresher.kafka.transactional import TransactionalProducer
from thresher.relay.leader.progress_topic import progress_limit
from thresher.relay.names import buckets_of, progress_topic, sessions, transactional_id
from thresher.relay.protocol.progress import encode
from thresher.relay.reading.marking import Marking
from thresher.relay.reading.pending_rows import PendingRows
from thresher.relay.reading.read_ahead import ReadAhead
from thresher.relay.reading.row_source import RowSource
from thresher.relay.settings import Delivery, Mandate
from thresher.relay.shard.factory import connector_of, producer_of
from thresher.relay.shard.meter import Meter
from thresher.relay.shard.recovery import Recovery
from thresher.relay.shard.settling import SettleSteps
from thresher.relay.shard.taking import Taking
from thresher.relay.store import store_of
from thresher.spark.worker.shard import Shard


class Attempt:
    """Puts the parts of one attempt together. For the task's own thread, but for `open_source`."""

    def __init__(self, shard: Shard, mandate: Mandate, ahead: ReadAhead) -> None:
        settings = mandate.settings
        self._shard, self._mandate, self._ahead = shard, mandate, ahead
        # Spark may run a task again within an attempt: marks are by what this process drew.
        self._drawn = uuid.uuid4()
        self._application = f"{sessions(settings.name, mandate.term)}/{shard.index}"[:63]
        store = store_of(settings, connector_of(settings.connection_factory))
        session = shard.enter(closing(store.session(self._application)))
        self._admin = Admin.of(settings.kafka)
        crash = CrashPoints(mandate.hook, shard.index)
        meter = Meter(shard, report=shard.event, waves=self._marking)
        self.transactions = Transactions(
            make=self._producer,
            admin=self._admin,
            progress=ProgressTopic(topic=progress_topic(settings.name), partition=shard.index, encode=encode),
            observer=meter,
            crash=crash,
            lenient=self._marking,
            # A transform may take longer over a batch than a broker waits for a transaction.
            ahead=not settings.transforms,
            batch_bytes=int(settings.producer.get("batch.size", 1_000_000)),
            wanted=lambda: ahead.ready,
        )
        self.settling = SettleSteps(
            mandate, session, ahead, self.leader if self._marking else None, crash, shard, meter
        )
        self._recovery = Recovery(shard, mandate, session, self._admin, self.transactions, crash, meter)
        self._crash = crash

    def handlers(self, batches: Iterator[Batch | NothingYet]) -> Handlers:
        """Return what is done for each effect of a protocol."""
        taking = Taking(self._shard, self._mandate, self._ahead, batches, self.settling, self._crash)
        return {
            **self._recovery.handlers,
            **self.transactions.handlers,
            **self.settling.handlers,
            **taking.handlers,
        }

    def progress_bytes(self) -> int:
        """Return how large a progress record may be now."""
        return progress_limit(self._admin, self._mandate.settings)

    def leader(self, generation: int) -> uuid.UUID:
        """Return what rows are marked with: another id after each start over.

        Not by term, shard and attempt, which come again where Spark runs a task again by itself: what the first had
        marked would count as the second's, and be sent by nobody.
        """
        return uuid.uuid5(self._drawn, str(generation))

    def open_source(self) -> RowSource:
        """Open what rows are read from. For the reader's thread."""
        buckets = buckets_of(self._shard.index, self._shard.shards)
        since = self._recovery.since
        if self._marking:
            return Marking(self._mandate, self._application, buckets, since, self.leader, lambda: self._ahead.hot)
        return PendingRows(self._mandate.settings, self._application, buckets, since)

    @property
    def _marking(self) -> bool:
        return self._mandate.settings.delivery is Delivery.AT_LEAST_ONCE

    def _producer(self, more: dict[str, object]) -> TransactionalProducer:
        settings = self._mandate.settings
        name = transactional_id(settings.name, self._shard.index)
        properties = {**settings.kafka, **settings.producer, **more}
        return TransactionalProducer(name, properties, make=producer_of(settings.producer_factory))
