"""A shard as the driver holds it: what is known of it, who is on its line, and its figures over all attempts."""

import queue
from dataclasses import dataclass, field

from thresher.spark.exchange import Caller, Introduction
from thresher.spark.outcome import Trouble
from thresher.spark.snapshot import Number, ShardSnapshot
from thresher.spark.supervision import Supervision
from thresher.spark.wire import Frame


@dataclass(slots=True)
class Station:
    """One shard. Changed in the loop's thread only; a snapshot may be taken in any."""

    shard: int
    known: Supervision = field(default_factory=Supervision)
    caller: Caller | None = None
    # Of the last task that was welcomed, also when it is gone.
    introduction: Introduction | None = None
    # Why a task ended its own process, which Spark cannot know.
    last_words: Trouble | None = None
    # Where its thread waits for the number of an attempt to launch, or None to end.
    work: "queue.SimpleQueue[int | None]" = field(default_factory=queue.SimpleQueue)
    _past: dict[str, Number] = field(default_factory=dict)
    _counts: dict[str, Number] = field(default_factory=dict)
    _gauges: dict[str, Number] = field(default_factory=dict)
    _resident: int | None = None

    def seat(self, caller: Caller) -> None:
        """Put a new task on the line; the figures of the one before it become past."""
        self._past = self._sums()
        self._counts, self._gauges, self._resident = {}, {}, None
        self.caller, self.introduction, self.last_words = caller, caller.introduction, None

    def unseat(self) -> Caller | None:
        """Take whoever is on the line off it; what it still says is not heard."""
        caller, self.caller = self.caller, None
        return caller

    def take(self, frame: Frame) -> None:
        """Take the figures and last words of a frame."""
        if "counts" in frame:
            self._counts, self._gauges, self._resident = frame["counts"], frame["gauges"], frame["resident"]
        if frame.get("is") == "last words":
            self.last_words = Trouble(kind=str(frame["kind"]), message=str(frame["message"]))

    def snapshot(self, now: float) -> ShardSnapshot:
        """Picture it."""
        known, introduction = self.known, self.introduction
        # A host and a process are said only of a task that is there.
        present = introduction if known.task is not None else None
        return ShardSnapshot(
            shard=self.shard,
            state=known.phase,
            seconds=round(max(0.0, now - known.since), 3) if known.since else 0.0,
            attempt=known.attempt,
            restarts=known.restarts,
            host=present.host if present else None,
            pid=present.process.pid if present else None,
            last_error=known.last_error,
            resident_bytes=self._resident if present else None,
            counts=self._sums(),
            gauges=dict(self._gauges) if present else {},
        )

    def _sums(self) -> dict[str, Number]:
        sums = dict(self._past)
        for name, value in self._counts.items():
            sums[name] = sums.get(name, 0) + value
        return sums
