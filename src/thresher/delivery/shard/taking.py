"""Performs the reading effects of a protocol: takes batches, and tells the reader which rows to leave out."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

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
from thresher.delivery.transforms import FailureCount
from thresher.spark.worker.shard import Shard

# An event has to fit into one message to the driver.
_TOPICS_IN_AN_EVENT, _REASON_CHARACTERS = 50, 700
# Topics that were not named are told as a number, each time that so many are left.
_COUNTED = 100
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
        # Topics with an alarm, and those of them that were named.
        self._waiting: set[str] = set()
        self._named: set[str] = set()
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
            Lift: lambda effect: self._lift([effect.topic]),
            Unhold: lambda effect: self._ahead.holds.unhold(effect.topics),
            Sweep: lambda effect: self._ahead.holds.sweep(effect.topics),
            Confine: lambda effect: self._ahead.holds.confine(effect.topics),
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
        self._tell_held(dict.fromkeys(effect.failing.topics, effect.failing.why))
        self._shard.wait(min(_LONGEST_PAUSE_SECONDS, 2.0**self._tries))
        self._tries += 1

    def _transformed(self) -> None:
        """Clear the alarm: no transform is at fault any more."""
        failing, self._failing, self._tries = self._failing, None, 0
        if failing is not None:
            self._shard.gauge("relaying", 1)
            self._lift(failing.topics)

    def _hold(self, effect: Hold) -> None:
        self._ahead.holds.hold(effect.topics, effect.streams, effect.rows, effect.behind, effect.lasting)
        self._tell_held(effect.missing)
        if effect.resting:
            self._shard.wait(_REST_SECONDS)

    def _tell_held(self, topics: Mapping[str, str]) -> None:
        """Raise the alarm about topics, each with its reason: by name, while few are named, and the number of all."""
        self._waiting.update(topics)
        room = max(0, _TOPICS_IN_AN_EVENT - len(self._named.difference(topics)))
        named = (sorted(self._named.intersection(topics)) + sorted(topics.keys() - self._named))[:room]
        self._named.update(named)
        reasons: dict[str, list[str]] = defaultdict(list)
        for topic in named:
            reasons[topics[topic][:_REASON_CHARACTERS]].append(topic)
        self._shard.event("held", reasons=reasons, of=len(self._waiting))

    def _lift(self, topics: Iterable[str]) -> None:
        """Clear the alarm about topics. Those that were named are told, and now and then the number of those left."""
        before = len(self._waiting)
        self._waiting.difference_update(topics)
        named = sorted(self._named.intersection(topics))
        self._named.difference_update(named)
        left = len(self._waiting)
        if named or (left < before and left in {len(self._named), left // _COUNTED * _COUNTED}):
            self._shard.event("lifted", topics=named, of=len(self._waiting))

    def _report_rejected(self, effect: ReportRejected) -> None:
        topics = sorted(effect.topics)[:_TOPICS_IN_AN_EVENT]
        self._shard.event("rejected", topics=topics, records=effect.records, why=effect.why)
