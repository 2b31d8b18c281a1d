"""Takes batches from the chain for a protocol, and tells the reader what the protocol decided about them."""

import time
from collections.abc import Iterator

from thresher.delivery.batch import NOTHING_YET, Batch, NothingYet
from thresher.delivery.crash_points import CrashPoints
from thresher.delivery.effects import DiscardReadAhead, Handlers, Hold, Lift, Take
from thresher.delivery.transforms import FailureCount
from thresher.relay.reading.read_ahead import ReadAhead
from thresher.relay.settings import Mandate
from thresher.relay.shard.settling import SettleSteps
from thresher.spark.worker.shard import Shard

# An event has to fit into a frame.
_TOPICS_IN_AN_EVENT = 50


class Taking:
    """The reading side of a protocol's effects. For the task's own thread."""

    def __init__(
        self,
        shard: Shard,
        mandate: Mandate,
        ahead: ReadAhead,
        batches: Iterator[Batch | NothingYet],
        settling: SettleSteps,
        crash: CrashPoints,
    ) -> None:
        self._shard, self._ahead, self._batches = shard, ahead, batches
        self._settling, self._crash = settling, crash
        self._batch_seconds = mandate.settings.limits.batch_seconds
        self._failures = shard.share(FailureCount)
        # The size of the batch that was taken last, and when.
        self._taken: tuple[int, float] | None = None

    @property
    def handlers(self) -> Handlers:
        """What is done for each effect."""
        return {
            Take: self._take,
            Hold: self._hold,
            Lift: lambda effect: self._shard.event("lifted", topic=effect.topic),
            DiscardReadAhead: lambda _: self._ahead.discard(),
        }

    def _take(self, effect: Take) -> Batch | NothingYet | None:
        self._ahead.hot = effect.hot
        if not effect.wait and not self._ahead.ready:
            if self._shard.stopping:
                return None
            self._crash.hold(())
            return NOTHING_YET
        self._learn()
        for batch in self._batches:
            if isinstance(batch, NothingYet):
                # A settling that failed is noticed also by a shard that has no other row.
                self._settling.settler.check()
                return NOTHING_YET
            if not self._ahead.is_current(batch):
                # A batch that a transform was at when rows went back.
                continue
            self._failures.rows = batch.failures
            self._taken = (len(batch.rows), time.monotonic())
            self._crash.hold(batch.rows.ids if self._crash.watched else ())
            return batch
        return None

    def _learn(self) -> None:
        if self._taken is not None:
            rows, began = self._taken
            self._ahead.size.learn(rows, time.monotonic() - began, self._batch_seconds)
            self._taken = None

    def _hold(self, effect: Hold) -> None:
        self._ahead.hold(effect.topics)
        topics = sorted(effect.missing)[:_TOPICS_IN_AN_EVENT]
        self._shard.event("held", topics=topics, of=len(effect.missing), why=effect.why)
