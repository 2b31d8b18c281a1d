"""One shard as the driver holds it: its state, its connected task, and its figures over all attempts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from thresher.core.errors import ThresherError
from thresher.observe.figure_sink import Number
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.driver.supervision import ShardState
from thresher.spark.driver.task_connection import TaskConnection, TaskIdentity
from thresher.spark.frame_socket import Frame
from thresher.spark.outcome import ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """Figures at one moment. Replaced as a whole, so that a snapshot in another thread never sees half a change."""

    # Counts of the attempts before this one.
    past: Mapping[str, Number] = field(default_factory=dict)
    counts: Mapping[str, Number] = field(default_factory=dict)
    gauges: Mapping[str, Number] = field(default_factory=dict)
    steps: Mapping[str, Number] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    resident: int | None = None
    # Events that earlier tasks could not send, and that this task could not send.
    past_dropped: int = 0
    dropped: int = 0

    def sums(self) -> dict[str, Number]:
        sums = dict(self.past)
        for name, value in self.counts.items():
            sums[name] = sums.get(name, 0) + value
        return sums


@dataclass(slots=True)
class ShardRecord:
    """Changed in the event loop's thread only; `snapshot` may be called in any thread."""

    shard: int
    state: ShardState = field(default_factory=ShardState)
    connection: TaskConnection | None = None
    # The identity of the last welcomed task, kept after its end.
    identity: TaskIdentity | None = None
    # The reason why the task ended its own process, which Spark cannot know.
    last_words: ErrorInfo | None = None
    # The error of a fatal outcome, where the driver could unpickle it.
    failure: ThresherError | None = None
    # The last error that was logged.
    logged_error: str | None = None
    # Events that the observer was too slow for.
    unobserved: int = 0
    _figures: _Figures = field(default_factory=_Figures)

    def connect(self, connection: TaskConnection) -> None:
        """Connect a welcomed task. The previous task's counts are added to the sums of past attempts."""
        figures = self._figures
        self._figures = _Figures(past=figures.sums(), past_dropped=figures.past_dropped + figures.dropped)
        self.connection, self.identity, self.last_words = connection, connection.identity, None

    def disconnect(self) -> TaskConnection | None:
        """Disconnect the task and return its connection; its later frames are ignored."""
        connection, self.connection = self.connection, None
        return connection

    def take(self, frame: Frame) -> None:
        """Take a frame's figures, or its last words. Raises `TypeError` or `LookupError` on a malformed frame."""
        if "counts" in frame:
            self._figures = replace(
                self._figures,
                counts=_numbers(frame["counts"]),
                gauges=_numbers(frame["gauges"]),
                steps=_numbers(frame["steps"]),
                notes=_texts(frame["notes"]),
                resident=int(frame["resident"]),
                dropped=int(frame["dropped"]),
            )
        if frame.get("is") == "last words":
            self.last_words = ErrorInfo(kind=str(frame["kind"]), message=str(frame["message"]))

    def take_final_counts(self, counts: Mapping[str, Number]) -> None:
        """Take the attempt's final counts, which came with its outcome."""
        self._figures = replace(self._figures, counts=dict(counts))

    def snapshot(self, now: float) -> ShardSnapshot:
        """Return the shard's part of the engine's snapshot."""
        state, figures = self.state, self._figures
        # Host, process, gauges and steps are shown only of a connected task.
        present = self.identity if state.task is not None else None
        return ShardSnapshot(
            shard=self.shard,
            state=state.phase,
            seconds=round(max(0.0, now - state.since), 3) if state.since else 0.0,
            attempt=state.attempt,
            restarts=state.restarts,
            host=present.host if present else None,
            pid=present.process.pid if present else None,
            last_error=state.last_error,
            resident_bytes=figures.resident if present else None,
            counts=figures.sums(),
            gauges=dict(figures.gauges) if present else {},
            steps=dict(figures.steps) if present else {},
            notes=dict(figures.notes) if present else {},
            events_dropped=figures.past_dropped + figures.dropped + self.unobserved,
        )


def _texts(given: object) -> dict[str, Sequence[str]]:
    if not isinstance(given, dict) or not all(isinstance(texts, list) for texts in given.values()):
        raise TypeError("notes are lists of texts")
    return given


def _numbers(given: object) -> dict[str, Number]:
    if not isinstance(given, dict) or not all(type(value) in {int, float} for value in given.values()):
        raise TypeError("figures are numbers")
    return given
