"""Performs the reading effects of a protocol: takes batches, and tells the reader which rows to leave out."""

import time
from collections.abc import Callable, Iterator

from thresher.delivery.batch import NOTHING_YET, Batch, FailingTransform, NothingYet
from thresher.delivery.crash_points import CrashPoints
from thresher.delivery.effects import (
    Confine,
    DiscardReadAhead,
    Handlers,
    Hold,
    Lift,
    Release,
    ReportRejected,
    Sweep,
    Take,
    Unhold,
    WaitForTransform,
)
from thresher.delivery.reading.read_ahead import ReadAhead
from thresher.delivery.shard.topic_alarm import TOPICS_IN_AN_EVENT, TopicAlarm
from thresher.delivery.transforms import FailureCount
from thresher.spark.worker.shard import Shard

# The pause when no more rows can be left out and nothing else is to be sent.
_REST_SECONDS = 1.0
# The longest pause before a failing transform is tried again.
_LONGEST_PAUSE_SECONDS = 30.0


class Taking:
    """The reading side of a protocol's effects. For the task's own thread."""

    def __init__(
        self,
        shard: Shard,
        ahead: ReadAhead,
        batches: Iterator[Batch | NothingYet],
        crash: CrashPoints,
        *,
        batch_seconds: float,
        check: Callable[[], None],
    ) -> None:
        """`batch_seconds`: the target time of a batch. `check` raises the error of a failed settling."""
        self._shard, self._ahead, self._batches = shard, ahead, batches
        self._crash, self._check = crash, check
        self._batch_seconds = batch_seconds
        self._failures = shard.share(FailureCount)
        # The transform that rows wait for, and how often it has failed.
        self._failing: FailingTransform | None = None
        self._tries = 0
        self._alarm = TopicAlarm(shard.event)
        # The rows of the last batch, and when it was taken.
        self._taken: tuple[int, float] | None = None

    @property
    def handlers(self) -> Handlers:
        """The function that performs each effect."""
        return {
            Take: self._take,
            Hold: self._hold,
            ReportRejected: self._report_rejected,
            WaitForTransform: self._wait_for_transform,
            Release: lambda _: self._ahead.holds.release(),
            Lift: lambda effect: self._alarm.lift([effect.topic]),
            Unhold: lambda effect: self._ahead.holds.unhold(effect.topics),
            Sweep: lambda effect: self._ahead.holds.sweep(effect.topics),
            Confine: lambda effect: self._ahead.holds.confine(effect.topics, effect.existing),
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
                # So a shard without further rows notices a failed settling too.
                self._check()
                return NOTHING_YET
            if not self._ahead.is_current(batch):
                # The read-ahead was discarded while a transform had this batch.
                continue
            if batch.failing is None:
                self._transformed()
            self._failures.rows = batch.failures
            # The transform's time counts for the size of the next batch; a pause for a failing transform does not.
            began = time.monotonic() - batch.transform_seconds
            self._taken = (len(batch.rows), began) if batch.failing is None else None
            self._crash.hold(batch.rows.ids if self._crash.watched else ())
            return batch
        return None

    def _learn(self) -> None:
        if self._taken is not None:
            rows, began = self._taken
            self._ahead.size.learn(rows, time.monotonic() - began, self._batch_seconds)
            self._taken = None

    def _wait_for_transform(self, effect: WaitForTransform) -> None:
        if self._failing is None:
            self._shard.gauge("relaying", 0)
        self._failing = effect.failing
        self._alarm.raise_for(dict.fromkeys(effect.failing.topics, effect.failing.why))
        self._shard.wait(min(_LONGEST_PAUSE_SECONDS, 2.0**self._tries))
        self._tries += 1

    def _transformed(self) -> None:
        """Clear the alarm: no transform is at fault any more."""
        failing, self._failing, self._tries = self._failing, None, 0
        if failing is not None:
            self._shard.gauge("relaying", 1)
            self._alarm.lift(failing.topics)

    def _hold(self, effect: Hold) -> None:
        self._ahead.holds.hold(effect.topics, effect.streams, effect.rows, effect.behind, effect.lasting)
        self._alarm.raise_for(effect.missing)
        if effect.resting:
            self._shard.wait(_REST_SECONDS)

    def _report_rejected(self, effect: ReportRejected) -> None:
        topics = sorted(effect.topics)[:TOPICS_IN_AN_EVENT]
        self._shard.event("rejected", topics=topics, records=effect.records, why=effect.why)
