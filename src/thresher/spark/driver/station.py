"""A shard as the driver holds it: what is known of it, who is on its line, and its figures over all attempts."""

import queue
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from thresher.core.errors import ThresherError
from thresher.observe.tally import Number
from thresher.spark.driver.line_server import Caller, Introduction
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.driver.supervision import Supervision
from thresher.spark.outcome import Trouble
from thresher.spark.wire import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """Figures at one moment, replaced as a whole: a snapshot in another thread never sees half of a change."""

    past: Mapping[str, Number] = field(default_factory=dict)
    counts: Mapping[str, Number] = field(default_factory=dict)
    gauges: Mapping[str, Number] = field(default_factory=dict)
    resident: int | None = None
    # Events that the tasks before it, and this one, could not send.
    lost: int = 0
    dropped: int = 0

    def sums(self) -> dict[str, Number]:
        sums = dict(self.past)
        for name, value in self.counts.items():
            sums[name] = sums.get(name, 0) + value
        return sums


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
    # The error that it failed with for good, where it could be brought over.
    failure: ThresherError | None = None
    # The last error that was logged.
    told: str | None = None
    # Where its thread waits for the number of an attempt to launch, or None to end.
    work: "queue.SimpleQueue[int | None]" = field(default_factory=queue.SimpleQueue)
    # Events that this driver's observer was too slow for.
    unobserved: int = 0
    _figures: _Figures = field(default_factory=_Figures)

    def seat(self, caller: Caller) -> None:
        """Put a new task on the line; the figures of the one before it become past."""
        figures = self._figures
        self._figures = _Figures(past=figures.sums(), lost=figures.lost + figures.dropped)
        self.caller, self.introduction, self.last_words = caller, caller.introduction, None

    def unseat(self) -> Caller | None:
        """Take whoever is on the line off it; what it still says is not heard."""
        caller, self.caller = self.caller, None
        return caller

    def take(self, frame: Frame) -> None:
        """Take the figures and last words of a frame. Raises `TypeError` or `LookupError` where it is nonsense."""
        if "counts" in frame:
            self._figures = replace(
                self._figures,
                counts=_numbers(frame["counts"]),
                gauges=_numbers(frame["gauges"]),
                resident=int(frame["resident"]),
                dropped=int(frame["dropped"]),
            )
        if frame.get("is") == "last words":
            self.last_words = Trouble(kind=str(frame["kind"]), message=str(frame["message"]))

    def settle(self, counts: Mapping[str, Number]) -> None:
        """Take what an attempt counted in all, which came with its outcome."""
        self._figures = replace(self._figures, counts=dict(counts))

    def snapshot(self, now: float) -> ShardSnapshot:
        """Picture it."""
        known, introduction, figures = self.known, self.introduction, self._figures
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
            resident_bytes=figures.resident if present else None,
            counts=figures.sums(),
            gauges=dict(figures.gauges) if present else {},
            events_dropped=figures.lost + figures.dropped + self.unobserved,
        )


def _numbers(given: object) -> dict[str, Number]:
    if not isinstance(given, dict) or not all(type(value) in {int, float} for value in given.values()):
        raise TypeError("figures are numbers")
    return given
